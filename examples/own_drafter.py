"""A drafter of a few lines, passed as an object: a row's last token is followed by what followed it before."""

import numpy as np
import torch

from specframe import Pipeline
from specframe.contracts.drafts import Budget, Draft
from specframe.contracts.reports import Outcome
from specframe.contracts.round import Batch
from specframe.model.run import Run


class Lookup:
    """Prompt lookup with a match of one token; a row without a match repeats its last token."""

    needs, offers = frozenset[str](), frozenset({"chain"})

    def start(self, run: Run) -> None: ...

    def observe(self, outcome: Outcome) -> None: ...

    def propose(self, batch: Batch, budget: Budget) -> Draft:
        """Return ``budget.depth`` tokens for every row, none in rounds that read prompts."""
        rows = [self.row(ids[:length], budget.depth) for ids, length in zip(batch.tokens, batch.lengths, strict=True)]
        return Draft(torch.from_numpy(np.stack(rows)).to(batch.tokens_BS.device))

    def row(self, ids: np.ndarray, count: int) -> np.ndarray:
        period = 1 + next(iter(np.flatnonzero(ids[-2::-1] == ids[-1])), 0)
        return ids[len(ids) - period + np.arange(count) % period]


def main() -> None:
    prompt = "import os\nimport sys\n\ndef first(items):\n    return items[0]\n\ndef second(items):\n"
    pipe = Pipeline(target="tiny", drafter=Lookup(), draft_length=4)
    result = next(pipe.generate([prompt], max_new_tokens=32))
    print(f"{prompt}{result.text}\n--- acceptance rate {pipe.report.draft_acceptance_rate:.2f}, no draft model")


if __name__ == "__main__":
    main()
