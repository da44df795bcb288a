"""One valid call of every public function, as small as can be; the generator spoils one argument of
it at a time."""

import dataclasses
import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn

import attacks
import jaxfl
from attacks import metrics
from jaxfl import accounting, datasets
from jaxfl.datasets import partitions
from tests.bad_input.recorded import recorded

KEY = jax.random.key(0)
RECORDS, FEATURES, CLASSES, ROUNDS, IMAGES = 12, 4, 2, 12, 4
RNG = np.random.default_rng(0)
X = RNG.random((RECORDS, FEATURES)).astype(np.float32)
X[:, 0] = np.arange(RECORDS) % 2
Y = np.arange(RECORDS) // 2 % CLASSES
MODEL = jaxfl.mlp(FEATURES, (3,), CLASSES)
PARAMS = MODEL.init(KEY)
ONE_STEP = jaxfl.LocalTraining(0.1)
CLIENTS = jaxfl.stack_clients([(X, Y), (X[::-1], Y)])
PICTURES = jaxfl.trunk_cnn((16, 16, 1), CLASSES, widths=(2, 2, 2, 2))
IMAGE = jnp.asarray(RNG.uniform(-1, 1, (RECORDS, 16, 16, 1)), jnp.float32)
ADVERSARY = attacks.Adversarial(width=8, batch_size=4)
TABLE = Path(__file__).with_name("table.csv")


@functools.cache
def run_of(model, rounds=ROUNDS):
    """Two clients of a model, trained together."""
    if model is PICTURES:
        clients = jaxfl.stack_clients([(IMAGE, Y), (IMAGE[::-1], Y)])
    elif model.classes is None:
        clients = jaxfl.stack_clients([(X, X @ [1.0, 2, 3, 4]), (X[::-1], X @ [1.0, 0, 3, 4])])
    else:
        clients = CLIENTS
    settings = jaxfl.Federated(rounds=rounds, training=ONE_STEP)
    return jaxfl.simulate(model, model.init(KEY), clients, KEY, settings)


def first(tree):
    return jax.tree.map(lambda a: a[0], tree)


def adam_known():
    training = jaxfl.LocalTraining(1e-3, optimizer=optax.adam)
    federated = jaxfl.Federated(rounds=2, training=training)
    run = jaxfl.simulate(MODEL, PARAMS, CLIENTS, KEY, federated)
    knowledge = attacks.Knowledge(X, Y, (attacks.binary_column(0, 0.5),))
    return {"model": MODEL, "messages": run.messages(0), "knowledge": knowledge}


def partly_known():
    public = {"x_public": np.concatenate([X, X]), "y_public": np.concatenate([Y, Y])}
    return public | {"settings": attacks.PartialDecoding(5, ONE_STEP)}


def attributes():
    messages = run_of(MODEL).messages(0)
    knowledge = attacks.Knowledge(X, Y, (attacks.binary_column(0, 0.5),))
    known = {"model": MODEL, "messages": messages, "knowledge": knowledge}
    few = attacks.CosMatching(steps=1)
    training = attacks.GLS(ONE_STEP, orders=2, passes=1, iterations=2)
    public = {
        "x_public": X,
        "values_public": X[:, 0].astype(int),
        "positions": np.asarray([0]),
        "candidates": 2,
        "key": KEY,
        "epochs": 1,
    }
    return {
        attacks.binary_column: {"position": 0, "prior": 0.5},
        attacks.best_of: {"answers": [attacks.cos_matching(**known, key=KEY, settings=few)]},
        attacks.candidate_records: {"model": MODEL, "knowledge": knowledge},
        attacks.closed_form: known | {"members": 12, "settings": attacks.ClosedForm()},
        attacks.decode_adam: adam_known() | {"settings": attacks.AdamDecoding(iterations=1)},
        attacks.decode_partial: known | partly_known(),
        attacks.cos_matching: known | {"key": KEY, "settings": few},
        attacks.l2_lbfgs: known | {"key": KEY, "settings": attacks.L2Matching(evaluations=1)},
        attacks.gauss_newton: known | {"settings": attacks.GaussNewton(0.1, 1, 1)},
        attacks.gls: known | {"key": KEY, "settings": training},
        attacks.statistics: known,
        attacks.diagnose: known | {"training": ONE_STEP},
        attacks.impute: {"knowledge": knowledge, "x_public": X, "y_public": Y},
        attacks.infer_from_model: {"model": MODEL, "params": PARAMS, "knowledge": knowledge},
        attacks.fit_public_model: public,
        attacks.name_by_public_model: {
            "params": attacks.fit_public_model(**public),
            "x": X,
            "positions": np.asarray([0]),
        },
        attacks.public_model: public | {"x": X},
        attacks.random_guess: {"key": KEY, "records": 3, "candidates": 2},
        attacks.majority_guess: {"prior": np.asarray([0.5, 0.5]), "records": 3},
        attacks.decode_membership: known | {"members": 6, "settings": attacks.ClosedForm()},
        attacks.variance_mixture: known | {"seed": 0},
    }


@functools.cache
def canaries_planted():
    """A client with canaries, and its messages."""
    directions = jaxfl.canary_directions(PARAMS, KEY, 5)
    training = jaxfl.LocalTraining(0.1, plugins=(jaxfl.Canaries(1.0, 1.0, directions=directions),))
    run = jaxfl.simulate(MODEL, PARAMS, CLIENTS, KEY, jaxfl.Federated(2, training))
    return {"model": MODEL, "messages": run.messages(0), "training": training, "key": KEY}


def membership():
    returned = jax.tree.map(lambda *a: jnp.stack(a), PARAMS, MODEL.init(jax.random.key(1)))
    by_rounds = jax.tree.map(lambda a: jnp.stack([a, a]), returned)
    messages = [run_of(MODEL).messages(c) for c in (0, 1)]
    records = {"model": MODEL, "x": X, "y": Y}
    variance = RNG.random((RECORDS, 2))
    return {
        attacks.measure_epsilon: canaries_planted()
        | {"data": jaxfl.one_client(X, Y), "delta": 1e-5, "confidence": 0.95},
        attacks.distinguish_in_sums: {
            "model": MODEL,
            "aggregates": run_of(MODEL).aggregates(),
            "candidates": CLIENTS,
            "others": jaxfl.stack_clients([(X, Y)] * 20),
            "key": KEY,
            "training": ONE_STEP,
            "settings": attacks.SumTest(draws=1),
        },
        attacks.judge_presence: {"presence": RNG.random(RECORDS), "status": 0},
        attacks.split_variances: {"variance": variance, "seed": 0},
        attacks.gradient_variance: {
            "model": MODEL,
            "params": PARAMS,
            "x": np.stack([X, X], 1),
            "y": np.stack([Y, Y], 1),
        },
        attacks.least_loss: records | {"params": returned},
        attacks.majority_of_rounds: records | {"returned": by_rounds},
        attacks.largest_drop: records | {"returned": by_rounds},
        attacks.by_discriminants: {"sources": np.arange(RECORDS) % 2, "x": X},
        attacks.decode_sources: records
        | {"messages": messages, "sizes": [12, 12], "key": KEY}
        | {"training": ONE_STEP, "ridge": 1e-4},
    }


def whole_records():
    schema = jaxfl.Schema(
        FEATURES,
        (jaxfl.Listed(("a",), (0,), np.asarray([[0.0], [1.0]]), (("no",), ("yes",))),),
        tuple(jaxfl.Measured(name, j + 1, 0.0, 1.0) for j, name in enumerate("bcd")),
    )
    model = jaxfl.mlp(FEATURES, (16, 16), CLASSES)
    params = model.init(KEY)
    sent = jax.grad(lambda p: jaxfl.mean_loss(model, p, X[:3], Y[:3]))(params)
    received, sent = jax.tree.map(lambda a: a[None], (params, sent))
    seen = {"model": model, "messages": jaxfl.Messages.from_gradients(received, sent)}
    few = attacks.RecordSearch(starts=8, sweeps=2, passes=1)
    recipe = {"training": jaxfl.LocalTraining(1.0), "key": KEY}
    return {
        attacks.count_records: seen,
        attacks.lies_in_span: seen | {"x": X},
        attacks.reconstruct_records: seen | {"schema": schema, "settings": few} | recipe,
        attacks.match_records: seen
        | recipe
        | {"schema": schema, "count": 3, "settings": attacks.RecordMatching(steps=1, restarts=1)},
    }


def local_models():
    linear = jaxfl.linear(FEATURES)
    messages = run_of(linear).messages(0)
    features = X.astype(np.float64)
    target = features @ [1.0, 2, 3, 4]
    moments = attacks.structured_moments(messages, features, target, 0, 0.1)
    known = {"x": features, "y": target, "attribute": 0, "moments": moments}
    points = 5
    optimum = attacks.LocalOptimum(
        np.ones(points), 0.2 * np.eye(points), 1.0, points, 0.0, True, ""
    )
    network = run_of(MODEL).messages(0)
    lenet = jaxfl.lenet("mnist")
    update = jaxfl.Messages.from_arrays(*2 * [jax.tree.map(lambda a: a[None], lenet.init(KEY))])
    return {
        attacks.infer_binary_attribute: known | {"params": np.ones(5), "rule": "rank"},
        attacks.infer_by_logistic: known,
        attacks.infer_in_box: known,
        attacks.structured_moments: {
            "messages": messages,
            "x": features,
            "y": target,
            "attribute": 0,
            "learning_rate": 0.1,
            "steps": 1,
        },
        attacks.local_optimum: {"messages": messages},
        attacks.local_moments: {"optimum": optimum, "epochs": 1},
        attacks.noisy_local_optimum: {"messages": messages, "delta": 0.05},
        attacks.linear_parameters: {"tree": messages.received},
        attacks.last_returned: {"messages": network},
        attacks.extrapolated: {"messages": network, "factor": 10.0, "rounds": 2},
        attacks.affine_optimum: {"messages": network, "ridge": 0.01},
        attacks.mapping_network: {
            "messages": network,
            "key": KEY,
            "settings": attacks.Mapping((2,), 1, 1e-3, 1),
        },
        attacks.pseudo_records: {
            "model": MODEL,
            "messages": network,
            "key": KEY,
            "record_shape": (FEATURES,),
            "settings": attacks.PseudoRecords(records=4, steps=1, finish=1),
        },
        attacks.invert_model: {
            "model": MODEL,
            "params": PARAMS,
            "shape": (FEATURES,),
            "key": KEY,
            "settings": attacks.Inversion(steps=1),
        },
        attacks.invert_gradient: {
            "model": lenet,
            "messages": update,
            "shape": (28, 28, 1),
            "batch": 1,
            "key": KEY,
            "y": np.zeros(1, int),
            "settings": attacks.GradientInversion(steps=1),
        },
    }


def properties():
    rounds, clients = 6, 5
    each = np.arange(rounds)
    deviation = np.full((rounds, 2), 0.5)
    observations = attacks.Observations(
        RNG.normal(size=rounds),
        np.ones((rounds, clients), np.float32),
        np.tile([-1.0, 1.0], (rounds, 1)),
        deviation,
        np.full(rounds, 0.1),
        20,
        np.inf,
        np.zeros((rounds, rounds)),
        np.zeros(rounds),
        0.1,
        each,
        each,
        clients,
    )
    received = jax.tree.map(lambda a: a[:2], run_of(MODEL).received)
    prevalence = attacks.Prevalence(np.arange(len(X)) % 2, 0.2, 0.6)
    prop = attacks.Property(jaxfl.Behavior(-1.0), prevalence=prevalence)
    few = attacks.DetectorTraining(attacks.FirstOrder(4), pairs=4, masks=4, repeated=2)
    detecting = {
        "model": MODEL,
        "received": received,
        "x": X,
        "y": Y,
        "prop": prop,
        "key": KEY,
        "training": ONE_STEP,
        "records": 3,
        "settings": few,
    }
    seen = {"observations": observations, "seen": np.asarray([3, 6])}
    weighted = seen | {"weights": np.ones(rounds)}
    return {
        attacks.least_squares: seen,
        attacks.gradient_votes: seen,
        attacks.ridge: weighted | {"penalty": 5.0},
        attacks.box: seen | {"iterations": 2},
        attacks.gibbs: seen | {"key": KEY, "settings": attacks.Gibbs(1, 1)},
        attacks.prolin: weighted | {"key": KEY, "settings": attacks.Prolin(iterations=2)},
        attacks.surprise: seen | {"p": np.full((2, clients), 0.2)},
        attacks.identifiability: {
            "participation": np.ones((rounds, clients)),
            "seen": np.asarray([3]),
            "tolerance": 1e-3,
        },
        attacks.train_detectors: detecting,
        attacks.observe: {"aggregates": run_of(MODEL, 2).aggregates(), "detectors": _detectors()},
    }


@functools.cache
def _detectors():
    directions = jnp.ones((2, sum(leaf.size for leaf in jax.tree.leaves(PARAMS))))
    one = jnp.ones(2)
    mean = jnp.tile(jnp.asarray([-1.0, 1.0]), (2, 1))
    return attacks.Detectors(directions, one, mean, mean**2, one, 20, 20.0, 0.1, jnp.arange(2))


def users():
    descriptors = np.asarray(RNG.normal(size=(3, 4, 5)), np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=-1, keepdims=True)
    senders = np.tile(np.arange(4), (3, 1))
    run = run_of(PICTURES, 2)
    messages = run.messages(0)
    observed = jax.tree.map(lambda w, v: w - v, messages.received, messages.returned)
    bias = attacks.last_bias(PICTURES, jax.tree.map(lambda a: a[:, None], observed))
    auxiliary = jaxfl.one_client(IMAGE, Y)
    seen = {"victim": IMAGE[None, :2].repeat(2, 0), "others": IMAGE[None, :2].repeat(2, 0)}
    fair = np.asarray([0.5, 0.5])
    representing = {
        "model": PICTURES,
        "y": np.zeros(IMAGES, int),
        "key": KEY,
        "shape": (16, 16, 1),
        "settings": attacks.Representing(images=IMAGES, evaluations=1),
    }
    virtual = attacks.Virtual(records=12)
    make = attacks.generator((16, 16, 1), CLASSES, 8)
    return {
        attacks.unit: {"descriptors": descriptors},
        attacks.follow: {"descriptors": descriptors, "votes": 3, "one_to_one": False},
        attacks.cluster_updates: {"descriptors": descriptors, "clients": 4, "one_to_one": False},
        attacks.cluster_agreement: {"names": senders, "senders": senders},
        attacks.follow_precision: {"names": senders, "senders": senders},
        attacks.link_precision: {
            "queries": descriptors,
            "senders": senders,
            "galleries": descriptors,
            "gallery_senders": senders,
        },
        attacks.fit_threshold: {"similarities": np.arange(4.0), "same": np.arange(4) > 1},
        attacks.matching_accuracy: {
            "similarities": np.arange(4.0),
            "same": np.arange(4) > 1,
            "threshold": 0.5,
        },
        attacks.pair_similarities: {
            "descriptors": descriptors[0],
            "identities": np.asarray([0, 0, 1, 1]),
            "key": KEY,
            "pairs": 4,
        },
        attacks.matched_filter: {
            "vectors": descriptors,
            "gradients": descriptors[0],
            "noise": 1.0,
            "ridge": 0.1,
        },
        attacks.fit_filter_noise: {
            "vectors": descriptors,
            "senders": senders,
            "gradients": descriptors[0],
            "ridge": 0.1,
        },
        attacks.updates_as_vectors: {"pseudo_gradient": jax.tree.map(lambda a: a[None], observed)},
        attacks.pooled_head: {
            "model": PICTURES,
            "pseudo_gradient": jax.tree.map(lambda a: a[None], observed),
        },
        attacks.last_bias: {
            "model": PICTURES,
            "pseudo_gradient": jax.tree.map(lambda a: a[None], observed),
        },
        attacks.uniform_counts: {"images": 5, "classes": 2},
        attacks.round_counts: {"shares": fair, "images": 5},
        attacks.labels_of: {"counts": np.asarray([2, 3]), "images": 5},
        attacks.infer_counts: {
            "model": PICTURES,
            "observed": first(observed),
            "probabilities": np.asarray([[0.6, 0.4], [0.3, 0.7]]),
            "images": 4,
            "virtual": virtual,
        },
        attacks.infer_all_counts: {
            "model": PICTURES,
            "received": messages.received,
            "bias": bias,
            "x": IMAGE,
            "y": Y,
            "images": 4,
            "virtual": virtual,
        },
        attacks.represent: representing
        | {"received": first(messages.received), "observed": first(observed)},
        attacks.representatives: representing
        | {"messages": messages, "y": np.zeros((2, IMAGES), int), "strategy": "map"},
        attacks.image_embedding: {"model": PICTURES},
        attacks.vector_embedding: {"inputs": 5, "width": 4},
        attacks.train_siamese: {
            "embedding": attacks.vector_embedding(5, 4),
            "samples": descriptors[0],
            "identities": np.asarray([0, 0, 1, 1]),
            "key": KEY,
            "start": None,
            "described": (),
            "described_after": (1,),
            "settings": attacks.Siamese(1, 2),
        },
        attacks.generator: {"shape": (16, 16, 1), "classes": 2, "width": 8},
        attacks.generate: {
            "make": make,
            "params": make.init(KEY, jnp.ones((2, 100)), *2 * [jnp.asarray([0, 1])])["params"],
            "labels": np.asarray([0, 1]),
            "identity": np.asarray([0, 1]),
            "key": KEY,
        },
        attacks.mgan_passive: seen
        | {
            "model": PICTURES,
            "messages": messages,
            "auxiliary": auxiliary,
            "key": KEY,
            "categories": fair,
            "settings": ADVERSARY,
        },
        attacks.mgan_server: {
            "model": PICTURES,
            "victim": 0,
            "auxiliary": auxiliary,
            "key": KEY,
            "categories": fair,
            "settings": ADVERSARY,
        },
        attacks.gan_attack: {
            "model": jaxfl.trunk_cnn((16, 16, 1), CLASSES + 1, widths=(2, 2, 2, 2)),
            "attacker": 0,
            "target": 0,
            "data": auxiliary,
            "training": ONE_STEP,
            "key": KEY,
            "settings": ADVERSARY,
        },
    }


def matching():
    update = jax.tree.map(lambda a: a * 0.1 + 1, PARAMS)
    guess = {"model": MODEL, "x": X, "y": Y, "key": KEY, "virtual": attacks.Virtual()}
    return {
        attacks.cosine_distance: {"virtual": update, "observed": PARAMS},
        attacks.squared_distance: {"virtual": update, "observed": PARAMS},
        attacks.virtual_update: guess | {"received": PARAMS},
        attacks.matching_objective: guess
        | {"messages": run_of(MODEL).messages(0), "distance": attacks.cosine_distance},
    }


def simulation():
    one_client = jaxfl.one_client(X, Y)
    trained = {"model": MODEL, "params": PARAMS, "data": one_client, "key": KEY}
    outputs = np.asarray(RNG.normal(size=(RECORDS, CLASSES)), np.float32)
    return {
        jaxfl.simulate: {
            "model": MODEL,
            "params": PARAMS,
            "clients": CLIENTS,
            "key": KEY,
            "federated": jaxfl.Federated(2, plugins=(jaxfl.Upload(1.0, 0.1, 8),)),
            "server": jaxfl.IsolatingServer(0),
            "test": one_client,
        },
        jaxfl.local_update: trained | {"training": jaxfl.LocalTraining(0.1, 1, 4)},
        jaxfl.client_round: trained
        | {"training": ONE_STEP, "plugins": (jaxfl.DPSGD(),), "send_key": KEY},
        jaxfl.canary_directions: {"params": PARAMS, "key": KEY, "count": 5},
        jaxfl.evaluate: {"model": MODEL, "params": PARAMS, "data": one_client},
        jaxfl.mean_loss: {
            "model": MODEL,
            "params": PARAMS,
            "x": X,
            "y": Y,
            "key": KEY,
            "mask": np.ones(RECORDS, bool),
        },
        jaxfl.cross_entropy: {"outputs": outputs, "y": Y},
        jaxfl.binary_cross_entropy: {"outputs": outputs[:, :1], "y": Y},
        jaxfl.squared_error: {"outputs": outputs[:, :1], "y": X[:, 1]},
        jaxfl.one_client: {"x": X, "y": Y, "id": 0},
        jaxfl.stack_clients: {"records": [(X, Y), (X, Y)], "ids": [0, 1]},
        jaxfl.from_flax: {
            "module": nn.Dense(2),
            "record_shape": (FEATURES,),
            "loss": jaxfl.cross_entropy,
            "classes": 2,
        },
        jaxfl.mlp: {
            "features": 4,
            "hidden": (3,),
            "outputs": 2,
            "task": "classification",
            "batch_norm": False,
            "activation": "relu",
            "dropout": 0.0,
        },
        jaxfl.label_smoothing: {"model": MODEL, "share": 0.1},
        jaxfl.linear: {"features": 4},
        jaxfl.logistic: {"features": 4},
        jaxfl.lenet: {"dataset": "mnist"},
        jaxfl.trunk_cnn: {
            "record_shape": (16, 16, 1),
            "classes": 2,
            "widths": (2, 2, 2, 2),
            "strides": (2, 1, 2, 1),
        },
        jaxfl.clipped_sgd: {"norm": 1.0},
        jaxfl.sgd: {"momentum": 0.9, "weight_decay": 1e-3, "proximal": 1.0},
        accounting.gaussian_epsilon: {"mu": 1.0, "delta": 1e-5},
        accounting.epsilon: {
            "noise_multiplier": 1.0,
            "records": 100,
            "batch_size": 10,
            "steps": 5,
            "delta": 1e-5,
            "mixup": False,
        },
        accounting.noise_multiplier: {
            "epsilon": 1.0,
            "records": 100,
            "batch_size": 10,
            "steps": 5,
            "delta": 1e-5,
            "mixup": False,
        },
    }


def unknown_columns():
    batches = jaxfl.LocalTraining(0.1, batch_size=len(X) // 2)
    unrolled = attacks.UnrolledGLS(batches, runs=2, tangents=1, passes=1)
    numbers = attacks.NumberDecoding(batches, orders=2, nodes=3, passes=2)
    knowledge = attacks.Knowledge(X, Y, (attacks.binary_column(0, 0.5),))
    seen = {"model": MODEL, "messages": run_of(MODEL).messages(0), "knowledge": knowledge}
    dataset = datasets.load(TABLE, target="income")
    known = {"x": dataset.x, "y": dataset.y, "schema": dataset.schema(), "columns": ("sex",)}
    return {
        attacks.hide: known | {"priors": {"sex": dataset.prior("sex")}},
        attacks.gls_unrolled: seen | {"key": KEY, "settings": unrolled},
        attacks.decode_numbers: seen | {"key": KEY, "settings": numbers},
    }


def data():
    rng = np.random.default_rng(0)
    table = datasets.read_csv(TABLE, target="income")
    dataset = datasets.encode(dataclasses.replace(table, group=np.asarray([0, 0, 1, 1])))
    return {
        datasets.read_csv: {
            "path": TABLE,
            "target": "income",
            "task": "classification",
            "kinds": {"age": "numeric"},
            "categories": {"sex": ["f", "m"]},
            "drop": (),
            "max_categories": 20,
            "sensitive": "sex",
            "bins": 4,
            "text_encoding": "utf-8",
            "separator": ",",
            "decimal": ".",
            "standardize": True,
        },
        datasets.encode: {"table": table, "encoding": "onehot"},
        datasets.load: {"name": "breast_cancer", "data_dir": None, "encoding": "onehot"},
        partitions.iid: {"rng": rng, "records": 12, "clients": 3},
        partitions.by_sizes: {"rng": rng, "records": 12, "sizes": [3, 4]},
        partitions.by_column: {"dataset": dataset, "column": "sex"},
        partitions.by_group: {"dataset": dataset},
        partitions.by_group_and_rest: {"rng": rng, "dataset": dataset, "clients": 3},
        partitions.overlapping_classes: {
            "rng": rng,
            "y": Y,
            "clients": 2,
            "whole": 1,
            "few": (1, 2),
        },
        partitions.by_classes: {"rng": rng, "y": Y, "clients": 2, "classes_per_client": 1},
        partitions.dirichlet: {"rng": rng, "y": Y, "clients": 2, "alpha": 1.0},
    }


def scores():
    truth = np.arange(4) % 2
    picture = np.asarray(RNG.random((16, 16, 1)), np.float32)
    return {
        metrics.accuracy: {"values": truth, "truth": truth},
        metrics.majority_rate: {"truth": truth, "candidates": 2},
        metrics.ranking: {"scores": RNG.random(4), "truth": truth, "threshold": 0.5},
        metrics.detection: {"scores": RNG.random(4), "truth": truth, "fpr": 0.1},
        metrics.zest_masks: {"key": KEY, "segments": 4, "count": 9},
        metrics.explain: {
            "apply": lambda x: x[:, :2],
            "x": X,
            "segments": np.arange(FEATURES),
            "masks": metrics.zest_masks(KEY, 4, 9),
            "fill": X.mean(0),
        },
        metrics.zest_similarity: {"a": X, "b": X},
        metrics.ssim: {"image": picture, "references": picture[None]},
        metrics.classifier_score: {"probabilities": np.full((3, 2), 0.5)},
    }


GROUPS = (
    attributes,
    unknown_columns,
    membership,
    whole_records,
    local_models,
    properties,
    users,
    matching,
    simulation,
    data,
    recorded,
    scores,
)
