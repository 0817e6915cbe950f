"""The paper's algorithms to the letter, slow and plain: unfoldings, Khatri-Rao matrices, explicit residuals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls


def unfold(X, n):
    """Mode-n unfolding, the first of the other modes varying fastest, as in the paper."""
    return np.reshape(np.moveaxis(X, n, 0), (X.shape[n], -1), order="F")


def khatri_rao(factors):
    """B^(n) = A^(N) ⊙ … ⊙ A^(1), of the factors given."""
    product = np.ones((1, factors[0].shape[1]))
    for A in factors:
        product = np.stack([np.kron(A[:, r], product[:, r]) for r in range(A.shape[1])], axis=1)
    return product


def model(factors):
    shape = [len(A) for A in factors]
    total = np.zeros(shape)
    for r in range(factors[0].shape[1]):
        rank_one = factors[0][:, r]
        for A in factors[1:]:
            rank_one = np.multiply.outer(rank_one, A[:, r])
        total += rank_one
    return total


def objective(X, factors, alpha, beta, squared):
    value = 0.5 * np.sum((X - model(factors)) ** 2)
    for n, A in enumerate(factors):
        l1 = 0.5 * np.sum(A.sum(axis=1) ** 2) if squared else np.sum(np.abs(A))
        value += alpha[n] / 2 * np.sum(A**2) + beta[n] * l1
    return value


def relative_error(X, factors):
    return np.linalg.norm(X - model(factors)) / np.linalg.norm(X)


@dataclass
class Literal:
    """One problem; each algorithm is a generator of the factors after every sweep."""

    X: np.ndarray
    factors: list
    alpha: tuple
    beta: tuple
    squared: bool = False
    delta_omega: float = 0.9999
    normalise: bool = True
    inner_passes: int = 1
    restarts: int = 0

    def subproblem(self, n):
        """BᵀB + αI (+ βE), the MTTKRP, and the plain l1 weight."""
        B = khatri_rao([A for m, A in enumerate(self.factors) if m != n])
        R = B.shape[1]
        G = B.T @ B + self.alpha[n] * np.eye(R)
        if self.squared:
            G = G + self.beta[n] * np.ones((R, R))
        return G, unfold(self.X, n) @ B, 0.0 if self.squared else self.beta[n]

    def objective(self, factors):
        return objective(self.X, factors, self.alpha, self.beta, self.squared)

    def mu(self):
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                for _ in range(self.inner_passes):
                    A = self.factors[n]
                    self.factors[n] = A * M / (A @ G + beta)
            yield self.factors

    def als(self):
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                self.factors[n] = np.maximum(0, np.linalg.solve(G, (M - beta).T).T)
            yield self.factors

    def hals(self):
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                A = self.factors[n].copy()
                for r in list(range(A.shape[1])) * self.inner_passes:
                    a = np.maximum(0, M[:, r] - A @ G[:, r] + A[:, r] * G[r, r] - beta) / G[r, r]
                    if self.normalise and n < self.X.ndim - 1 and np.linalg.norm(a) > 0:
                        a = a / np.linalg.norm(a)
                    A[:, r] = a
                self.factors[n] = A
            yield self.factors

    def apg(self):
        before, L_before, t = [A.copy() for A in self.factors], [None] * self.X.ndim, 1.0
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

    def apg_sweep(self, start, before, L_before, omega_hat):
        self.factors = [A.copy() for A in start]
        L = []
        for n in range(self.X.ndim):
            G, M, beta = self.subproblem(n)
            L.append(np.linalg.norm(G, 2))
            bound = self.delta_omega * np.sqrt(L_before[n] / L[n]) if L_before[n] is not None else 0.0
            hat = start[n] + min(omega_hat, bound) * (start[n] - before[n])
            self.factors[n] = np.maximum(0, hat - (hat @ G - M + beta) / L[n])
        return L

    def anls(self):
        while True:
            for n in range(self.X.ndim):
                G, M, beta = self.subproblem(n)
                root = np.linalg.cholesky(G)
                rows = [nnls(root.T, np.linalg.solve(root, row - beta))[0] for row in M]
                self.factors[n] = np.array(rows)
            yield self.factors

    def sweeps(self, method) -> Iterator[list]:
        run: dict[str, Callable] = {"mu": self.mu, "als": self.als, "hals": self.hals, "apg": self.apg}
        return run.get(method, self.anls)()
