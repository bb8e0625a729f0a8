"""A model that really computes: a fixed part for each batch, and half as much for each item.

It answers each item with the size of the batch it came in, and a number that only the computation
gives.
"""

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as triton  # type: ignore[import-not-found]

WIDTH = 160


class TritonPythonModel:
    """Triton's name for it."""

    def initialize(self, args: dict[str, str]) -> None:
        """Weights, and how often they are applied."""
        parameters = json.loads(args["model_config"])["parameters"]
        self.rounds = int(parameters["rounds"]["string_value"])
        drawn = np.random.default_rng(7).standard_normal((WIDTH, WIDTH))
        self.weights = (drawn / np.sqrt(WIDTH)).astype(np.float32)

    def execute(self, requests: list[Any]) -> list[Any]:
        """One batch."""
        taken = [triton.get_input_tensor_by_name(request, "IN").as_numpy() for request in requests]
        items = np.concatenate(taken)
        state = self.weights
        for _ in range(self.rounds):
            state = np.tanh(state @ self.weights)
        sums = [self._answer(state + item.mean()) for item in items]
        answers, at = [], 0
        for each in taken:
            rows = [[len(items), total] for total in sums[at : at + len(each)]]
            at += len(each)
            tensor = triton.Tensor("OUT", np.array(rows, np.float32))
            answers.append(triton.InferenceResponse([tensor]))
        return answers

    def _answer(self, state: Any) -> float:
        for _ in range(self.rounds // 2):
            state = np.tanh(state @ self.weights)
        return float(state.sum())
