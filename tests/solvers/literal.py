"""The paper's algorithms, implemented literally: unfoldings, Khatri-Rao matrices, explicit residuals."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from scipy.optimize import nnls

from sparse_ncp.solvers.tensor.products import Array, Float64

Sweeps: TypeAlias = Iterator[list[Float64]]


def unfold(X: Array, n: int) -> Float64:
    """Mode-n unfolding, the first of the other modes varying fastest, as in the paper."""
    return np.reshape(np.moveaxis(X, n, 0), (X.shape[n], -1), order="F")


def khatri_rao(factors: Sequence[Array]) -> Float64:
    """B^(n) = A^(N) ⊙ … ⊙ A^(1), of the factors given."""
    product = np.ones((1, factors[0].shape[1]))
    for A in factors:
        product = np.stack([np.kron(A[:, r], product[:, r]) for r in range(A.shape[1])], axis=1)
    return product


def mttkrp(X: Array, factors: Sequence[Array], n: int) -> Float64:
    return unfold(X, n) @ khatri_rao([A for m, A in enumerate(factors) if m != n])


def model(factors: Sequence[Array]) -> Float64:
    shape = [len(A) for A in factors]
    total = np.zeros(shape)
    for r in range(factors[0].shape[1]):
        rank_one = factors[0][:, r]
        for A in factors[1:]:
            rank_one = np.multiply.outer(rank_one, A[:, r])
        total += rank_one
    return total


def objective(
    X: Array, factors: Sequence[Array], alpha: Sequence[float], beta: Sequence[float], squared: bool
) -> float:
    value = 0.5 * np.sum((X - model(factors)) ** 2)
    for n, A in enumerate(factors):
        l1 = 0.5 * np.sum(A.sum(axis=1) ** 2) if squared else np.sum(np.abs(A))
        value += alpha[n] / 2 * np.sum(A**2) + beta[n] * l1
    return value


def relative_error(X: Array, factors: Sequence[Array]) -> float:
    return float(np.linalg.norm(X - model(factors)) / np.linalg.norm(X))


@dataclass
class Literal:
    """One problem; each algorithm is a generator of the factors after every sweep."""

    X: Float64
    factors: list[Float64]
    alpha: tuple[float, ...]
    beta: tuple[float, ...]
    squared: bool = False
    delta_omega: float = 0.9999
    normalise: bool = True
    inner_passes: int = 1
    restarts: int = 0

    def subproblem(self, n: int) -> tuple[Float64, Float64, float]:
        """BᵀB + αI (+ βE), the MTTKRP, and the plain l1 weight."""
        B = khatri_rao([A for m, A in enumerate(self.factors) if m != n])
        R = B.shape[1]
        G = B.T @ B + self.alpha[n] * np.eye(R)
        if self.squared:
            G = G + self.beta[n] * np.ones((R, R))
        return G, unfold(self.X, n) @ B, 0.0 if self.squared else self.beta[n]

    def objective(self, factors: Sequence[Float64]) -> float:
        return objective(self.X, factors, self.alpha, self.beta, self.squared)

    def mu(self) -> Sweeps:
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                for _ in range(self.inner_passes):
                    A = self.factors[n]
                    self.factors[n] = A * M / (A @ G + beta)
            yield self.factors

    def als(self) -> Sweeps:
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                self.factors[n] = np.maximum(0, np.linalg.solve(G, (M - beta).T).T)
            yield self.factors

    def hals_mode(self, n: int) -> Float64:
        G, M, beta = self.subproblem(n)
        A = self.factors[n].copy()
        for r in list(range(A.shape[1])) * self.inner_passes:
            a = np.maximum(0, M[:, r] - A @ G[:, r] + A[:, r] * G[r, r] - beta) / G[r, r]
            if self.normalise and n < self.X.ndim - 1 and np.linalg.norm(a) > 0:
                a = a / np.linalg.norm(a)
            A[:, r] = a
        return A

    def hals(self) -> Sweeps:
        while True:
            for n in range(self.X.ndim):
                self.factors[n] = self.hals_mode(n)
            yield self.factors

    def apg(self) -> Sweeps:
        before, t = [A.copy() for A in self.factors], 1.0
        L_before: Sequence[float | None] = [None] * self.X.ndim
        objective_before = np.inf
        while True:
            t_next = 0.5 * (1 + np.sqrt(1 + 4 * t**2))
            start = [A.copy() for A in self.factors]
            L = self.apg_sweep(start, before, L_before, (t - 1) / t_next)
            if self.objective(self.factors) > objective_before + 1e-14 * np.sum(self.X**2):
                self.restarts += 1
                L = self.apg_sweep(start, start, L_before, 0.0)
            objective_before = self.objective(self.factors)
            before, L_before, t = start, L, t_next
            yield self.factors

    def apg_sweep(
        self, start: list[Float64], before: list[Float64], L_before: Sequence[float | None], omega_hat: float
    ) -> list[float]:
        self.factors = [A.copy() for A in start]
        L: list[float] = []
        for n in range(self.X.ndim):
            G, M, beta = self.subproblem(n)
            L.append(float(np.linalg.norm(G, 2)))
            last = L_before[n]
            bound = self.delta_omega * np.sqrt(last / L[n]) if last is not None else 0.0
            hat = start[n] + min(omega_hat, bound) * (start[n] - before[n])
            self.factors[n] = np.maximum(0, hat - (hat @ G - M + beta) / L[n])
        return L

    def anls_mode(self, n: int) -> Float64:
        G, M, beta = self.subproblem(n)
        root = np.linalg.cholesky(G)
        return np.array([nnls(root.T, np.linalg.solve(root, row - beta))[0] for row in M])

    def anls(self) -> Sweeps:
        while True:
            for n in range(self.X.ndim):
                self.factors[n] = self.anls_mode(n)
            yield self.factors

    def hybrid(self, long: int, passes: int) -> Sweeps:
        """Exact steps in modes below `long` rows, passes of HALS without unit columns in the others."""
        exact, by_column = replace(self, normalise=False), replace(self, normalise=False, inner_passes=passes)
        while True:
            for n, A in enumerate(self.factors):
                one = exact.anls_mode if len(A) < long else by_column.hals_mode
                exact.factors = by_column.factors = self.factors
                self.factors[n] = one(n)
            yield self.factors

    def sweeps(self, method: str) -> Sweeps:
        run = {"mu": self.mu, "als": self.als, "hals": self.hals, "apg": self.apg}
        return run.get(method, self.anls)()
