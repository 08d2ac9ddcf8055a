"""Constraints: masks that depend on a sequence's own tokens alone, and the tokens of decoding one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from specframe.contracts.constraints import Drafted
from specframe.contracts.requests import Request
from specframe.plugins.registry import registry
from specframe.reference import reference_decode
from specframe.text.sampling import Sampling
from specframe_testing import fakes, harness, standard, suite_device
from specframe_testing.conformance.decoding_suite import LENGTHS, fake_pair
from specframe_testing.conformance.role_suite import Suite
from specframe_testing.constraint_fakes import OneByOne

NEW = 12


class ConstraintSuite(Suite):
    """Tests of a constraint. The target has 61 token ids, of which 0 ends a sequence; token 7 is the text ``007;``."""

    role = "constraint"

    def asked(self, constraint: Any = None) -> list[Request]:
        """Return the requests that the suite decodes."""
        target, _ = fake_pair()
        prompts = harness.random_prompts(LENGTHS, target.config.vocab_size)
        stops = frozenset({target.config.eos_token_id})
        return [Request(index, prompt, NEW, stops, constraint=constraint) for index, prompt in enumerate(prompts)]

    def expected(self) -> list[list[int]]:
        """Return the reference decoder's tokens with the constraint as a logits processor."""
        target, _ = fake_pair()
        found = []
        for request in self.asked():
            own = OneByOne(self.object(), request, target.config.vocab_size, fakes.fake_tokenizer())
            found.append(reference_decode(target, request.prompt_ids, NEW, request.stop_token_ids, [own]))
        return found

    def decoded(self, **options: Any) -> list[list[int]]:
        """Return the tokens of a pipeline with the constraint."""
        pipe = self.pipeline(*fake_pair(), tokenizer=fakes.fake_tokenizer(), **options)
        results = harness.decode(pipe, self.asked())
        assert [result.error for result in results] == [None] * len(results)
        return [result.token_ids for result in results]

    def masks(self, constraint: Any, states: Sequence[Any], drafts: list[list[int]], count: int = 1) -> torch.Tensor:
        """Return the masks of the last places of chains."""
        tokens = np.array(drafts, dtype=np.int64).reshape(len(states), -1)
        parents = np.tile(np.arange(-1, tokens.shape[1] - 1), (len(states), 1))
        masks: torch.Tensor = constraint.masks(states, Drafted(tokens, parents, count))
        return masks

    def begun(self, constraint: Any) -> list[Any]:
        """Return a state for each request."""
        return [constraint.begin(request, 61, fakes.fake_tokenizer()) for request in self.asked()]

    @pytest.mark.parametrize("drafter", ["none", "model", "model,tree=static", "model,tree=dynamic"])
    def test_equals_reference(self, drafter: str) -> None:
        """Whatever is drafted, the tokens are those of decoding one at a time."""
        assert self.decoded(drafter=drafter) == self.expected()

    def test_drafts_from_the_prompt(self) -> None:
        """A drafter that looks drafts up knows nothing of the constraint, and changes nothing."""
        assert self.decoded(drafter=registry().default("prompt lookup")) == self.expected()

    @pytest.mark.parametrize("batch_size", [1, 8])
    @pytest.mark.parametrize("align", standard.ALIGNMENTS)
    def test_any_batch(self, align: str, batch_size: int) -> None:
        """The tokens do not depend on the batch and the alignment."""
        assert self.decoded(align=align, batch_size=batch_size) == self.expected()

    def test_drafts_without_it(self) -> None:
        """Drafts of what the target would say without the constraint hold tokens that are not allowed, and change nothing."""
        target, _ = fake_pair()
        script = harness.truth(target, self.asked())
        for drafter in (fakes.ScriptedDrafter(script), fakes.ScriptedTree(script)):
            assert self.decoded(drafter=drafter) == self.expected()

    def test_as_on_a_gpu(self) -> None:
        """On a device as strict as CUDA the tokens are the same."""
        expected = self.expected()
        with suite_device.running_on("sim"):
            assert self.decoded() == expected

    @pytest.mark.filterwarnings("ignore:specframe.OneByOne")  # it is tried on tokens that are not allowed
    def test_sampling(self) -> None:
        """Sampled tokens are those of one row at a time with the constraint as a logits processor."""
        asked = self.asked()
        prompts = [request.prompt_ids for request in asked]

        def ids(sampling: Any, **options: Any) -> list[list[int]]:
            given = {"accept": standard.ALWAYS_THE_SAME, "tokenizer": fakes.fake_tokenizer(), "draft_length": 3}
            pipe = harness.pipeline(*fake_pair(), **{**given, **options})
            return [result.token_ids for result in pipe.generate(prompts, NEW, sampling=sampling)]

        made = [OneByOne(self.object(), request, 61, fakes.fake_tokenizer()) for request in asked]
        own = [Sampling(temperature=1.2, processors=(one,)) for one in made]
        together = ids(Sampling(temperature=1.2), batch_size=3, constraint=self.make())
        assert together == ids(own, drafter=None, batch_size=1)

    def test_masks_have_their_shape(self) -> None:
        """Masks are int32 (B, T, ceil(V / 32)) on the CPU, for any number of rows and places."""
        constraint = self.object()
        states = self.begun(constraint)
        for rows, drafted in ((1, 0), (3, 4), (5, 1)):
            for count in {1, drafted + 1}:
                found = self.masks(constraint, states[:rows], [[2] * drafted] * rows, count)
                assert found.shape == (rows, count, 2)

    def test_masks_leave_states_as_they_are(self) -> None:
        """Asking for masks changes no state: asked again they are the same, also after the accepted tokens."""
        one, other = self.object(), self.object()
        looked, fresh = self.begun(one), self.begun(other)
        first = self.masks(one, looked, [[2, 4, 6]] * len(looked), 4)
        assert torch.equal(self.masks(one, looked, [[2, 4, 6]] * len(looked), 4), first)
        token = allowed(first[:, 0])
        moved = [one.advance(state, [ids[0]]) for state, ids in zip(looked, token, strict=True)]
        still = [other.advance(state, [ids[0]]) for state, ids in zip(fresh, token, strict=True)]
        nothing: list[list[int]] = [[] for _ in moved]
        assert torch.equal(self.masks(one, moved, nothing), self.masks(other, still, nothing))

    def test_a_draft_is_walked_as_tokens_are(self) -> None:
        """The mask after draft tokens is that of a state which has advanced by them, at once or one by one."""
        constraint = self.object()
        for index, tokens in enumerate(self.expected()):
            tokens = tokens[:-1]
            drafted = self.masks(constraint, [self.begun(constraint)[index]], [tokens], len(tokens) + 1)[0]
            one_by_one = self.begun(constraint)[index]
            for place in range(len(tokens) + 1):
                at_once = self.begun(constraint)[index]
                if place:
                    one_by_one = constraint.advance(one_by_one, [tokens[place - 1]])
                    at_once = constraint.advance(at_once, tokens[:place])
                for state in (one_by_one, at_once):
                    assert torch.equal(self.masks(constraint, [state], [[]])[0, 0], drafted[place])

    def test_rows_do_not_depend_on_each_other(self) -> None:
        """The masks of a row are the same among other rows and alone."""
        constraint = self.object()
        states = self.begun(constraint)
        drafts = [[row, 2 * row, 5] for row in range(len(states))]
        together = self.masks(constraint, states, drafts, 4)
        for row, state in enumerate(self.begun(constraint)):
            assert torch.equal(self.masks(constraint, [state], drafts[row : row + 1], 4)[0], together[row])

    def test_branches_do_not_depend_on_each_other(self) -> None:
        """The mask after a tree's node is that after the chain of the tokens on its path."""
        constraint = self.object()
        parents, tokens = np.array([[-1, -1, 0, 1, 1, 3]]), np.array([[2, 4, 3, 6, 7, 8]])
        found = constraint.masks(self.begun(constraint)[:1], Drafted(tokens, parents, 7))[0]
        for place, path in enumerate(Drafted(tokens, parents, 7).paths(0)):
            assert torch.equal(self.masks(constraint, self.begun(constraint)[:1], [path])[0, 0], found[place])

    def test_any_token_may_be_drafted(self) -> None:
        """Tokens that are not allowed may be drafted, one after the other: what comes before them has its masks."""
        constraint = self.object()
        states = self.begun(constraint)
        first = self.masks(constraint, states, [[] for _ in states])
        for token in range(61):
            found = self.masks(constraint, states, [[token] * 3 for _ in states], 4)
            assert torch.equal(found[:, :1], first)

    def test_some_token_is_allowed(self) -> None:
        """A sequence that keeps to the constraint finds a token at every place."""
        constraint = self.object()
        for state, tokens in zip(self.begun(constraint), self.expected(), strict=True):
            assert all(allowed(self.masks(constraint, [state], [tokens[:-1]], len(tokens))[0]))


def allowed(masks_TW: torch.Tensor) -> list[list[int]]:
    """Return the token ids that masks allow."""
    bits_TV = np.unpackbits(masks_TW.contiguous().numpy().view(np.uint8), axis=-1, bitorder="little")
    return [np.flatnonzero(bits_V).tolist() for bits_V in bits_TV]
