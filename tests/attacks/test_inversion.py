"""Sample reconstruction: what a model and an update give away of images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attacks import (
    GradientInversion,
    Inversion,
    Virtual,
    invert_gradient,
    invert_model,
    matching_objective,
)
from attacks.local_models.inversion import total_variation
from attacks.metrics import ssim
from benchmarks.measurements.local_models.scores import matched_likeness
from jaxfl import Federated, LocalTraining, Messages, linear, logistic, mlp, simulate, stack_clients

KEY = jax.random.key(0)


def test_inverting_a_linear_classifier_finds_its_weights():
    """The surest image of a linear softmax is white where the class's weight exceeds the others'
    mean, black elsewhere."""
    model = mlp(16, (), 3)
    params = {"Dense_0": {"kernel": jax.random.normal(KEY, (16, 3)), "bias": jnp.zeros(3)}}
    inverted = invert_model(
        model, params, (4, 4, 1), settings=Inversion(steps=3000, learning_rate=0.1)
    )
    images, sure = inverted.images, inverted.probabilities
    kernel = np.asarray(params["Dense_0"]["kernel"])
    for k in range(3):
        rivals = np.delete(kernel, k, 1)
        above = (kernel[:, k, None] > rivals).all(1)
        below = (kernel[:, k, None] < rivals).all(1)
        pixels = np.asarray(images[k]).reshape(-1)
        assert pixels[above].min() > pixels[below].max()
    assert float(sure.min()) > 0.9


def test_a_model_that_normalises_by_the_batch_is_inverted_from_images_that_differ():
    """Equal images have no variance to be normalised by: each layer magnifies their first step by 1
    / sqrt(1e-5)."""
    rng = np.random.default_rng(0)
    templates = rng.random((3, 4, 4, 1)).astype(np.float32)
    y = np.arange(150) % 3
    x = (templates[y] + 0.1 * rng.normal(size=(150, 4, 4, 1))).clip(0, 1).astype(np.float32)
    model, training = mlp(16, (32, 32, 32), 3, batch_norm=True), LocalTraining(0.1, batch_size=30)
    params = simulate(
        model, model.init(KEY), stack_clients([(x, y)]), KEY, Federated(40, training)
    ).params

    def moved(key):
        images = invert_model(
            model, params, (4, 4, 1), key, settings=Inversion(steps=1, learning_rate=1e-4)
        ).images
        return float(jnp.abs(images - 0.5).mean())

    assert moved(None) > 0.4
    assert moved(KEY) < 0.05
    images = invert_model(
        model, params, (4, 4, 1), KEY, settings=Inversion(steps=1000, learning_rate=0.01)
    ).images
    likeness = np.corrcoef(np.asarray(images).reshape(3, -1), templates.reshape(3, -1))[:3, 3:]
    assert (likeness.argmax(1) == np.arange(3)).all()


def test_an_image_is_read_out_of_one_gradient_and_not_out_of_anothers():
    rng = np.random.default_rng(0)
    image = rng.random((1, 8, 8, 1)).astype(np.float32)
    other = rng.random((1, 8, 8, 1)).astype(np.float32)
    model, training = mlp(64, (32,), 4), LocalTraining(0.1)
    clients = stack_clients([(image, np.asarray([2])), (other, np.asarray([2]))])
    run = simulate(model, model.init(KEY), clients, KEY, Federated(rounds=1, training=training))
    settings = GradientInversion(alpha=1e-4, steps=1500, virtual=Virtual(training=training))

    def error(client):
        inverted = invert_gradient(
            model, run.messages(client), (8, 8, 1), 1, KEY, settings=settings
        )
        images, labels = inverted.images, inverted.labels
        assert int(labels.argmax()) == 2
        return float(jnp.abs(images[0] - image[0]).mean())

    assert error(0) < 0.05
    assert error(1) > 0.2
    still = Messages(run.received, run.received, run.messages(0).rounds)
    nothing = invert_gradient(model, still, (8, 8, 1), 1, KEY, settings=settings)
    assert np.isnan(nothing.images).all()


def test_one_logit_stands_for_two_classes():
    """Logistic regression gives away as much as the two-class softmax with the same decision."""
    rng = np.random.default_rng(0)
    model, training = logistic(16), LocalTraining(0.1)
    params = {"Dense_0": {"kernel": jax.random.normal(KEY, (16, 1)), "bias": jnp.zeros(1)}}
    inverted = invert_model(
        model, params, (4, 4, 1), settings=Inversion(steps=3000, learning_rate=0.1)
    )
    images, sure = inverted.images, inverted.probabilities
    weights = np.asarray(params["Dense_0"]["kernel"])[:, 0]
    pixels = np.asarray(images).reshape(2, 16)
    assert pixels[1][weights > 0].min() > pixels[1][weights < 0].max()
    assert pixels[0][weights < 0].min() > pixels[0][weights > 0].max()
    assert float(sure.min()) > 0.9
    image = rng.random((1, 4, 4, 1)).astype(np.float32)
    for y in (0, 1):
        run = simulate(
            model, params, stack_clients([(image, np.asarray([y]))]), KEY, Federated(1, training)
        )
        seen, virtual = run.messages(0), Virtual(training=training)
        settings = GradientInversion(alpha=0.0, steps=800, virtual=virtual)

        def tried(start, y=None, seen=seen, virtual=virtual, settings=settings):
            key = jax.random.key(start)
            answer = invert_gradient(model, seen, (4, 4, 1), 1, key, y=y, settings=settings)
            guess = answer.images.reshape(1, 16), answer.labels
            return float(matching_objective(model, seen, *guess, KEY, virtual)), answer

        _, told = tried(0, jnp.asarray([y]))
        assert np.corrcoef(np.ravel(told.images), image.ravel())[0, 1] > 0.99
        objective, best = tried(0)
        assert best.labels.shape == (1, 2)
        if y == 0:  # of a label that the model is sure of, the search ends in a gradient of zeros
            assert objective < 1e-3
            # Cosines tell on which side of the model's own answer a label lies, and no more.
            says = jax.nn.sigmoid(np.asarray(best.images).reshape(16) @ weights)
            assert float(says - best.labels[0, 1]) * (says - y) > 0


def test_images_are_matched_one_to_one():
    rng = np.random.default_rng(0)
    records = jnp.asarray(rng.random((4, 12, 12, 1)), jnp.float32)
    found, places = matched_likeness(records[jnp.asarray([2, 0])], records)
    assert found == pytest.approx(1, abs=1e-4)
    assert places.tolist() == [2, 0]
    twice, places = matched_likeness(
        records[jnp.asarray([1, 1])], records
    )  # the second has to take another record
    assert twice < 0.8
    assert len(set(places.tolist())) == 2
    assert np.isnan(matched_likeness(records * jnp.nan, records)[0])


def test_metrics_of_images():
    flat, rng = jnp.full((2, 12, 12, 1), 0.3), np.random.default_rng(0)
    assert float(total_variation(flat)) == 0
    ramp = jnp.broadcast_to(jnp.arange(12.0)[None, :, None, None] / 12, (1, 12, 12, 1))
    assert float(total_variation(ramp)) == pytest.approx(1 / 12)
    image = jnp.asarray(rng.random((12, 12, 1)), jnp.float32)
    scores = ssim(image, jnp.stack([image, 1 - image]))
    assert float(scores[0]) == pytest.approx(1, abs=1e-4)
    assert float(scores[1]) < 0.1


def test_bad_input():
    model = linear(4)
    with pytest.raises(ValueError, match="needs a classifier"):
        invert_model(model, model.init(KEY), (4,))
    classifier = mlp(4, (), 2)
    clients = stack_clients([(np.zeros((1, 4)), np.zeros(1, int))])
    messages = simulate(classifier, classifier.init(KEY), clients, KEY, Federated(1)).messages(0)
    unknown = GradientInversion(virtual=Virtual("gradients"))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kind='gradients'"):
        invert_gradient(classifier, messages, (4,), 1, KEY, settings=unknown)
    with pytest.raises(ValueError, match="steps=0"):
        invert_model(mlp(4, (), 2), mlp(4, (), 2).init(KEY), (4,), settings=Inversion(steps=0))
    for wrong, message in (
        (GradientInversion(alpha=-1.0), r"alpha=-1\.0"),
        (GradientInversion(learning_rate=-1.0), "learning_rate=-1"),
    ):
        with pytest.raises(ValueError, match=message):
            invert_gradient(classifier, messages, (4, 1, 1), 1, KEY, settings=wrong)
    with pytest.raises(ValueError, match=r"shape=\(16,\) must be of height, width and channels"):
        invert_gradient(classifier, messages, (16,), 1, KEY)
    with pytest.raises(
        ValueError,
        match=r"shape=\(5, 5, 1\) has records of shape \(5, 5, 1\), which the model does not take",
    ):
        invert_gradient(classifier, messages, (5, 5, 1), 1, KEY)
    with pytest.raises(ValueError, match=r"shape=\(5,\) has records"):
        invert_model(classifier, classifier.init(KEY), (5,))
