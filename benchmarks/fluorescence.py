"""Advice of `choose` for a fluorescence tensor of known mixtures, and how well the factors match the concentrations.

    python -m benchmarks.fluorescence TENSOR.npy CONCENTRATIONS.npy [--rank 10]

The tensor is sample × emission × excitation, the concentrations sample × substance. The amino acids data of the
University of Copenhagen are of this form; they are not part of the project.
"""

import argparse
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment
from tqdm import tqdm

from sparse_ncp.solvers.studies import ChoiceSettings, choose
from sparse_ncp.solvers.tensor.products import Float64


def correlations(factor: Float64, concentrations: Float64) -> Float64:
    """Return the correlation of each substance with the component that is matched to it."""
    substances = concentrations.shape[1]
    between = np.corrcoef(factor.T, concentrations.T)[:-substances, -substances:]
    components, matched = linear_sum_assignment(between, maximize=True)
    return np.asarray(between[components[np.argsort(matched)], np.sort(matched)])


def main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.fluorescence", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("tensor", type=Path)
    parser.add_argument("concentrations", type=Path)
    parser.add_argument("--rank", type=int, default=10, help="components of the overfit")
    asked = parser.parse_args()
    tensor = np.maximum(np.load(asked.tensor), 0.0)  # an instrument's zero is a little below zero
    with tqdm(total=100, unit="%", bar_format="{l_bar}{bar}| {elapsed}") as bar:
        for state in choose(tensor, ChoiceSettings(rank=asked.rank)):
            bar.set_description(state.stage)
            bar.update(round(100 * state.progress) - bar.n)
    if state.outcome is None:
        raise RuntimeError("the study ended without an outcome")
    advice = state.outcome.advice
    found = correlations(state.outcome.factors[0], np.load(asked.concentrations))
    print(
        f"components {advice.components}, suggestion {advice.suggestion}, range {advice.range}, "
        f"confidence {advice.confidence}"
    )
    print(f"because {advice.reason}")
    print("correlation with the concentrations:", ", ".join(f"{value:.4f}" for value in found))


if __name__ == "__main__":
    main()
