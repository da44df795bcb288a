"""Attacks on federated learning, by the question that an adversary asks. Every public name is
importable from here.

`attributes`: what is an unknown column of a client's records (attribute inference, AIA; gradient
inversion of one column).
`membership`: is a record among a client's (MIA), and whose is it (source inference, SIA).
`local_models`: what would a client's own model be (LMRA), and what does that give away.
`properties`: which clients have a property, seen through secure aggregation.
`records`: all columns and labels of a client's records, with nothing known but the schema.
`users`: which anonymous updates come from one client, and how do its records look.
"""

from attacks.attributes.baselines import (
    L2Matching,
    fit_public_model,
    l2_lbfgs,
    majority_guess,
    name_by_public_model,
    public_model,
    random_guess,
    statistics,
)
from attacks.attributes.candidate_decoding import (
    GLS,
    AdamDecoding,
    ClosedForm,
    DecodedNumbers,
    Decoding,
    GaussNewton,
    NumberDecoding,
    PartialDecoding,
    UnrolledGLS,
    candidate_records,
    closed_form,
    decode_adam,
    decode_numbers,
    decode_partial,
    gauss_newton,
    gls,
    gls_unrolled,
)
from attacks.attributes.cosine import CosMatching, cos_matching
from attacks.attributes.from_model import infer_from_model
from attacks.attributes.hiding import Hidden, hide
from attacks.attributes.imputation import impute
from attacks.attributes.knowledge import (
    Knowledge,
    Reconstruction,
    UnknownColumn,
    best_of,
    binary_column,
)
from attacks.diagnosis import Diagnosis, Finding, diagnose
from attacks.fit import (
    Fit,
    FitWarning,
    MisfitWarning,
    SomeWrongWarning,
    Status,
    UncheckedWarning,
)
from attacks.local_models.attribute import (
    InferredAttribute,
    infer_binary_attribute,
    infer_by_logistic,
    infer_in_box,
)
from attacks.local_models.inversion import (
    ClassImages,
    GradientInversion,
    Inversion,
    InvertedImages,
    invert_gradient,
    invert_model,
)
from attacks.local_models.moments import Moments, local_moments, structured_moments
from attacks.local_models.optimum import (
    LocalOptimum,
    NoisyOptimum,
    linear_parameters,
    local_optimum,
    noisy_local_optimum,
)
from attacks.local_models.pseudo_records import PseudoRecords, pseudo_records
from attacks.local_models.reconstruction import (
    LocalModel,
    Mapping,
    affine_optimum,
    extrapolated,
    last_returned,
    mapping_network,
)
from attacks.matching import (
    Virtual,
    cosine_distance,
    matching_objective,
    squared_distance,
    virtual_update,
)
from attacks.membership.canaries import MeasuredEpsilon, measure_epsilon
from attacks.membership.decoding import decode_membership, judge_presence
from attacks.membership.mixture import (
    Membership,
    gradient_variance,
    split_variances,
    variance_mixture,
)
from attacks.membership.sources import (
    Sources,
    Vote,
    by_discriminants,
    decode_sources,
    largest_drop,
    least_loss,
    majority_of_rounds,
)
from attacks.membership.sums import SumsTold, SumTest, distinguish_in_sums
from attacks.properties.box import box
from attacks.properties.detector_laws import Detectors, observe
from attacks.properties.detector_training import DetectorTraining, FirstOrder, Lda, Logistic
from attacks.properties.detectors import train_detectors
from attacks.properties.gibbs import Gibbs, gibbs
from attacks.properties.least_squares import gradient_votes, least_squares, ridge
from attacks.properties.observations import Observations, identifiability
from attacks.properties.prolin import Prolin, ProlinAnswer, prolin
from attacks.properties.shadows import Prevalence, Property
from attacks.properties.surprise import surprise
from attacks.records.by_products import count_records, lies_in_span
from attacks.records.matching import MatchedRecords, RecordMatching, match_records
from attacks.records.progress import RecordSearch
from attacks.records.reconstruction import Records, reconstruct_records
from attacks.users.clusters import cluster_agreement, cluster_updates
from attacks.users.counts import (
    infer_all_counts,
    infer_counts,
    labels_of,
    round_counts,
    uniform_counts,
)
from attacks.users.gan_attack import gan_attack
from attacks.users.generative import Adversarial
from attacks.users.generators import generate, generator
from attacks.users.linkability import (
    fit_threshold,
    follow,
    follow_precision,
    last_bias,
    link_precision,
    matching_accuracy,
    pair_similarities,
    pooled_head,
    unit,
    updates_as_vectors,
)
from attacks.users.matched_filter import fit_filter_noise, matched_filter
from attacks.users.mgan import Generated, mgan_passive, mgan_server
from attacks.users.representatives import Representatives, Representing, represent, representatives
from attacks.users.siamese import Siamese, image_embedding, train_siamese, vector_embedding

__all__ = [
    "GLS",
    "AdamDecoding",
    "Adversarial",
    "ClassImages",
    "ClosedForm",
    "CosMatching",
    "DecodedNumbers",
    "Decoding",
    "DetectorTraining",
    "Detectors",
    "Diagnosis",
    "Finding",
    "FirstOrder",
    "Fit",
    "FitWarning",
    "GaussNewton",
    "Generated",
    "Gibbs",
    "GradientInversion",
    "Hidden",
    "InferredAttribute",
    "Inversion",
    "InvertedImages",
    "Knowledge",
    "L2Matching",
    "Lda",
    "LocalModel",
    "LocalOptimum",
    "Logistic",
    "Mapping",
    "MatchedRecords",
    "MeasuredEpsilon",
    "Membership",
    "MisfitWarning",
    "Moments",
    "NoisyOptimum",
    "NumberDecoding",
    "Observations",
    "PartialDecoding",
    "Prevalence",
    "Prolin",
    "ProlinAnswer",
    "Property",
    "PseudoRecords",
    "Reconstruction",
    "RecordMatching",
    "RecordSearch",
    "Records",
    "Representatives",
    "Representing",
    "Siamese",
    "SomeWrongWarning",
    "Sources",
    "Status",
    "SumTest",
    "SumsTold",
    "UncheckedWarning",
    "UnknownColumn",
    "UnrolledGLS",
    "Virtual",
    "Vote",
    "affine_optimum",
    "best_of",
    "binary_column",
    "box",
    "by_discriminants",
    "candidate_records",
    "closed_form",
    "cluster_agreement",
    "cluster_updates",
    "cos_matching",
    "cosine_distance",
    "count_records",
    "decode_adam",
    "decode_membership",
    "decode_numbers",
    "decode_partial",
    "decode_sources",
    "diagnose",
    "distinguish_in_sums",
    "extrapolated",
    "fit_filter_noise",
    "fit_public_model",
    "fit_threshold",
    "follow",
    "follow_precision",
    "gan_attack",
    "gauss_newton",
    "generate",
    "generator",
    "gibbs",
    "gls",
    "gls_unrolled",
    "gradient_variance",
    "gradient_votes",
    "hide",
    "identifiability",
    "image_embedding",
    "impute",
    "infer_all_counts",
    "infer_binary_attribute",
    "infer_by_logistic",
    "infer_counts",
    "infer_from_model",
    "infer_in_box",
    "invert_gradient",
    "invert_model",
    "judge_presence",
    "l2_lbfgs",
    "labels_of",
    "largest_drop",
    "last_bias",
    "last_returned",
    "least_loss",
    "least_squares",
    "lies_in_span",
    "linear_parameters",
    "link_precision",
    "local_moments",
    "local_optimum",
    "majority_guess",
    "majority_of_rounds",
    "mapping_network",
    "match_records",
    "matched_filter",
    "matching_accuracy",
    "matching_objective",
    "measure_epsilon",
    "mgan_passive",
    "mgan_server",
    "name_by_public_model",
    "noisy_local_optimum",
    "observe",
    "pair_similarities",
    "pooled_head",
    "prolin",
    "pseudo_records",
    "public_model",
    "random_guess",
    "reconstruct_records",
    "represent",
    "representatives",
    "ridge",
    "round_counts",
    "split_variances",
    "squared_distance",
    "statistics",
    "structured_moments",
    "surprise",
    "train_detectors",
    "train_siamese",
    "uniform_counts",
    "unit",
    "updates_as_vectors",
    "variance_mixture",
    "vector_embedding",
    "virtual_update",
]
