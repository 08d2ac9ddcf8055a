"""Captions: descriptions of the events in a frame of a trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from specframe_lab.trace.frames import CUT, EMPTY, PADDING, REJECTED, Frame, Lane, SchemeTrace

OVERWRITTEN, MASKED, DROPPED, DROPPED_LATER, LEFT = "overwritten", "masked", "dropped", "dropped later", "left"
"""What becomes of a rejected token: another is written over it; it stays in its slot, hidden; its slot is
cut off, at once or when its row next takes part; its row is done, and nobody minds it."""

ENDS = {
    OVERWRITTEN: "will be overwritten by the next pass",
    MASKED: "stay in the cache, masked",
    DROPPED: "are cut off",
    DROPPED_LATER: "stay until their row next takes part",
}
ENDS_ONE = ENDS | {
    MASKED: "stays in the cache, masked",
    DROPPED: "is cut off",
    DROPPED_LATER: "stays until its row next takes part",
}


class Captions:
    """The captions of one scheme's frames."""

    def __init__(self, scheme: SchemeTrace) -> None:
        self._scheme = scheme

    def caption(self, index: int) -> str:
        """Return the caption of a frame."""
        frame = self._scheme.frames[index]
        tell = {"read": self._read, "score": self._scored, "settle": self._settled}[frame.phase]
        return " ".join(tell(frame, index))

    def _read(self, frame: Frame, index: int) -> list[str]:
        lanes = [lane for lane in frame.lanes if lane.score]
        lengths = listed(str(lane.score.length) for lane in lanes if lane.score)
        if len(lanes) == 1:
            told = [f"The target reads the prompt of {name(lanes[0])}, {plural(int(lengths), 'token')}, in one pass."]
        else:
            told = [f"The target reads {len(lanes)} prompts of {lengths} tokens in one pass."]
        padded = [f"{name(lane)} with {count}" for lane in lanes if (count := lane.marks.count(PADDING))]
        if padded:
            told.append(f"Shorter prompts are padded on the left: {listed(padded)}.")
        told.append(f"{'Each row' if len(lanes) > 1 else 'It'} gets one token of the target's own.")
        return told + self._faults(lanes) + self._ends(lanes)

    def _scored(self, frame: Frame, index: int) -> list[str]:
        lanes = [lane for lane in frame.lanes if lane.score]
        if not frame.draft_length:
            told = ["The target is fed each row's last token and adds one of its own."]
        else:
            nodes = max((len(lane.score.tree) for lane in lanes if lane.score), default=0)
            drafted = f"a tree of {plural(nodes, 'node')}" if nodes else plural(frame.draft_length, "draft token")
            fed = f"each row's last token and {drafted}"
            told = [f"One pass of the target scores {fed}.", self._acceptance(lanes)]
        return told + self._changes(lanes) + self._faults(lanes) + self._ends(lanes)

    def _acceptance(self, lanes: list[Lane]) -> str:
        acceptances = [(lane.score.by_rule, lane.score.drafted) for lane in lanes if lane.score]
        if not any(accepted for accepted, _ in acceptances) and len(lanes) > 1:
            return "No row accepted a draft token."
        if len(set(acceptances)) == 1 and len(lanes) > 1:
            return f"Every row accepted {share(*acceptances[0])}."
        told = (
            f"{name(lane)} accepted {share(*acceptance)}" for lane, acceptance in zip(lanes, acceptances, strict=True)
        )
        return sentence("; ".join(told))

    def _changes(self, lanes: list[Lane]) -> list[str]:
        """Say where the alignment or a row's end changed the rule's result."""
        told = []
        scores = [(name(lane), lane.score) for lane in lanes if lane.score]
        if cut := [who for who, score in scores if score.committed < score.by_rule]:
            fewest = min(score.committed for _, score in scores)
            told.append(f"{listed(cut)} {be(cut)} cut to {fewest or 'none'}, the fewest of the batch.")
        for who, score in scores:
            if past := score.committed - score.accepted:
                told.append(f"{who} ends before its last {plural(past, 'accepted token').removeprefix('1 ')}.")
        if altered := [who for who, score in scores if score.altered]:
            told.append(f"The token that comes next in {listed(altered)} is the draft's own, not the target's.")
        return [sentence(text) for text in told]

    def _faults(self, lanes: list[Lane]) -> list[str]:
        """Describe wrong inputs of the pass."""
        told = []
        scores = [(name(lane), lane.score) for lane in lanes if lane.score]
        for side in ("high", "low"):
            drifts = [(name(lane), lane.drift) for lane in lanes if lane.drift * (1 if side == "high" else -1) > 0]
            if drifts:
                by = listed(f"{who} by {abs(drift)}" for who, drift in drifts)
                told.append(f"Fed at positions that are too {side}: {by}.")
        if leaks := [f"{who} at {score.leaks}" for who, score in scores if score.leaks]:
            told.append(f"Looking at slots that should be hidden: {listed(leaks)}.")
        if blind := [f"{score.blind} of {who}" for who, score in scores if score.blind]:
            told.append(f"Tokens hidden from their own row: {listed(blind)}.")
        return told

    def _ends(self, lanes: list[Lane]) -> list[str]:
        ended = [name(lane) for lane in lanes if lane.score and lane.score.finish]
        return [sentence(f"{listed(ended)} {be(ended)} complete.")] if ended else []

    def _settled(self, frame: Frame, index: int) -> list[str]:
        fates = self.fates(index)
        live = [lane for lane in frame.lanes if lane.row is not None]
        cut = any(CUT in lane.marks for lane in self._scheme.frames[index - 1].lanes if lane.score)
        word = "discarded" if cut else "rejected"
        told = [text for fate in ENDS for text in self._fate(fates, fate, word)]
        told += self._shifts(live) + self._moves_of_rows(frame.lanes, index)
        moved = frame.shifted + frame.carried
        if moved:
            size = bytes_text(moved * self._scheme.slot_bytes)
            told.append(f"{plural(moved, 'cached token')} moved: {size} of keys and values.")
        else:
            told.append("Nothing moves.")
        parked = [name(lane) for lane in frame.lanes if lane.row is None]
        if parked:
            told.append(sentence(f"{listed(parked)} {'sits' if len(parked) == 1 else 'sit'} the next pass out."))
        return told if index + 1 < len(self._scheme.frames) else [*told, "The run is over."]

    def _fate(self, fates: dict[int, Counter[str]], fate: str, word: str) -> list[str]:
        """Say which rows' slots come to one end."""
        counts = {prompt: counter[fate] for prompt, counter in fates.items() if counter[fate]}
        total = sum(counts.values())
        if not total:
            return []
        end = (ENDS_ONE if total == 1 else ENDS)[fate]
        slots = plural(total, f"{word} slot")
        if len(counts) == 1:
            return [f"The {slots.removeprefix('1 ')} of prompt {next(iter(counts))} {end}."]
        return [f"{slots} {end}: {listed(f'{count} of prompt {prompt}' for prompt, count in counts.items())}."]

    def _shifts(self, lanes: list[Lane]) -> list[str]:
        shifted = [lane for lane in lanes if lane.shift]
        if not shifted:
            return []
        ends = {max(slot for slot, mark in enumerate(lane.marks) if mark != EMPTY) for lane in lanes if lane.slots}
        goal = f" so that all end in slot {ends.pop()}" if len(ends) == 1 and len(lanes) > 1 else ""
        sides = {"right" if lane.shift > 0 else "left" for lane in shifted}
        to = {
            lane.prompt: "" if len(sides) == 1 else f" to the {'right' if lane.shift > 0 else 'left'}"
            for lane in shifted
        }
        by = listed(f"{name(lane)} by {abs(lane.shift)}{to[lane.prompt]}" for lane in shifted)
        return [f"Rows are shifted{f' {sides.pop()}' if len(sides) == 1 else ''}{goal}: {by}."]

    def carried(self, lane: Lane, index: int) -> str:
        """Return the old and new row of a sequence that changed its row before frame ``index``; "" if it did not."""
        if lane.came_from is None or lane.came_from == lane.row or not lane.slots:
            return ""
        before = next(
            (other.row for other in self._scheme.frames[index - 1].lanes if other.prompt == lane.prompt), None
        )
        if lane.row is None:
            return "out of the batch"
        return f"into row {lane.row}" if before is None else f"from row {before} to row {lane.row}"

    def _moves_of_rows(self, lanes: list[Lane], index: int) -> list[str]:
        """Name the sequences with cached tokens that changed their row."""
        moves = [f"prompt {lane.prompt} {way}" for lane in lanes if (way := self.carried(lane, index))]
        return [f"Carried: {listed(moves)}."] if moves else []

    def fates(self, index: int) -> dict[int, Counter[str]]:
        """Return, per prompt, what happens to rejected tokens that the pass before the committed frame ``index`` wrote."""
        frames = self._scheme.frames
        found: dict[int, Counter[str]] = {}
        settled = {lane.prompt: lane for lane in frames[index].lanes}
        for lane in frames[index - 1].lanes:
            vain = [number for number, mark in zip(lane.slots, lane.marks, strict=True) if mark in (REJECTED, CUT)]
            if lane.score and vain:
                fate = [self._fate_of(number, settled.get(lane.prompt), index) for number in vain]
                found[lane.prompt] = Counter(fate)
        return found

    def _fate_of(self, number: int, settled: Lane | None, index: int) -> str:
        """Return the later fate of one cell, from the committed frame ``index`` on."""
        if settled is None:
            return LEFT
        if number not in settled.slots:
            return DROPPED
        for frame in self._scheme.frames[index + 1 :]:
            lane = next((lane for lane in frame.lanes if lane.prompt == settled.prompt), None)
            if lane is None:
                return LEFT
            if number not in lane.slots:
                return DROPPED_LATER if frame.phase == "settle" else OVERWRITTEN
            if lane.score:
                return MASKED
        return LEFT


def name(lane: Lane) -> str:
    """Return the name of a sequence."""
    return f"prompt {lane.prompt}"


def listed(parts: Iterable[str]) -> str:
    """Return parts as in a sentence: a, b and c."""
    *others, last = list(parts) or [""]
    return f"{', '.join(others)} and {last}" if others else last


def share(accepted: int, drafted: int) -> str:
    """Return how many of a draft's tokens were accepted."""
    return f"all {drafted}" if accepted == drafted > 1 else f"{accepted or 'none'} of {drafted}"


def be(names: list[str]) -> str:
    """Return the verb for one name or several."""
    return "is" if len(names) == 1 else "are"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def sentence(text: str) -> str:
    """Return text with a capital letter at its start and a full stop at its end."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def bytes_text(count: int) -> str:
    """Return a number of bytes to be read by people."""
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return plural(count, "byte")
