"""All figures of a comparison, with their titles, units and definitions."""

from __future__ import annotations

from specframe_lab.comparison import comparison_figures as f
from specframe_lab.comparison.comparison_figures import Rows, Table
from specframe_lab.comparison.comparison_results import Comparison
from specframe_lab.comparison.oracle import ORACLE, oracle
from specframe_lab.comparison.summary import clock_unit
from specframe_lab.serving.objectives import objectives
from specframe_lab.serving.serving_figures import PERCENTILES, rates

EQUALITY = (
    *("scheme", "batch_size", "sequences", "exact", "partial", "exact_same_batch"),
    *("promised", "same_in_all_repeats"),
)


def named(rows: Rows) -> str:
    """Return the schemes of a figure in words."""
    *others, last = dict.fromkeys(row[0] for row in rows) or [""]
    return f"{', '.join(others)} and {last}" if others else last


def tables(comparison: Comparison) -> dict[str, Table]:
    """Return every figure of a comparison by its name."""
    ups, slo, seconds = f.speed_up(comparison), comparison.about.get("slo"), unit(comparison)
    grouping = [row for row in f.shares(comparison, "grouping_rate", speculating=True) if row[1] > 1]
    wanted = objectives(slo) if slo else None
    every = [
        Table(
            "speed_up",
            "Speed-up over plain decoding",
            "times plain decoding",
            "Tokens per second over those of plain decoding at the same batch size in the same repeat.",
            ups,
        ),
        Table(
            "speed_up_over_transformers",
            "Speed-up over transformers",
            "times transformers",
            "Tokens per second over those of plain decoding by generate of transformers, which decodes one batch after the other, "
            "at the same batch size in the same repeat.",
            f.over_transformers(comparison),
        ),
        Table(
            "throughput",
            "Throughput",
            "tokens/s",
            "Generated tokens of all sequences over the time of all rounds, reading of prompts included.",
            f.by_cell(comparison, f.figure("tokens_per_second")),
        ),
        Table(
            "oracle",
            "Oracle bound",
            "tokens/s",
            "Tokens per second of the first run, and had it known for each row and round how many draft tokens are accepted; last, "
            "with the best scheme for each row and round, too. A round and a draft token cost what they took.",
            oracle(comparison),
            ORACLE,
        ),
        Table(
            "bitwise_price",
            "Price of bitwise equality",
            "times the time",
            "Tokens per second of the same scheme without bitwise, at the same batch size in the same repeat, over those with it.",
            f.bitwise_price(comparison),
        ),
        Table(
            "break_even",
            "Break-even batch size",
            "rows",
            "The largest batch size at which the interval of the speed-up lies above 1, and the next at which it lies below.",
            f.break_even(ups),
            ("scheme", "faster_up_to", "slower_from", "in_words"),
        ),
        Table(
            "side_by_side",
            "Side by side",
            "times as fast",
            "Tokens per second of the fastest lossless scheme over those of each other at the same batch size in the same repeat.",
            f.side_by_side(comparison),
            f.SIDE_BY_SIDE,
        ),
        Table(
            "stage_shares",
            "Where the time goes",
            "share of the time",
            "Seconds of each stage over the seconds of all stages, all repeats together.",
            f.each(comparison, f.stage_shares),
            ("scheme", "batch_size", "stage", "share", "seconds_per_run"),
        ),
        Table(
            "realign_share",
            "Realign share",
            "share of the time",
            "Share of the time spent moving what is cached, stage align.",
            f.shares(comparison, "realign_share", speculating=True),
            nothing="No scheme spent time on moving rows.",
        ),
        Table(
            "latency",
            "Latency of a sequence",
            clock_unit(comparison),
            f"{unit(comparison).capitalize()} from a sequence's arrival to its end: percentiles over sequences, each the "
            "median over repeats. Longest wait: the most rounds that a sequence was passed over.",
            f.each(comparison, f.latency),
            ("scheme", "batch_size", *(f"p{p}" for p in PERCENTILES), "longest_wait", "sequences"),
        ),
        Table(
            "serving",
            "Requests",
            seconds,
            f"In {seconds}, from the sending of a request on, which with --max-concurrency may be later than its arrival. ttft: "
            "to the first token. tpot: per token after the first. itl: between two chunks of a request, those of all requests "
            "together; the tokens of one round are one chunk. e2el: to the end. Percentiles are medians over repeats.",
            f.each(comparison, f.serving),
            ("scheme", "batch_size", "figure", "mean", *(f"p{p}" for p in PERCENTILES), "values"),
        ),
        Table(
            "request_rates",
            "Requests per second",
            "requests/s",
            f"Of all requests together, over the {seconds} from the start to the last one's end: medians over repeats.",
            f.each(comparison, lambda lines: f.request_rates(lines, wanted)),
            ("scheme", "batch_size", *rates(())),
        ),
        Table(
            "request_goodput",
            "Goodput",
            "good requests/s",
            f"Requests per second that keep all objectives: {slo} (milliseconds).",
            f.by_cell(comparison, lambda line: rates(line.get("requests", ()), wanted)["request_goodput"])
            if wanted
            else [],
        ),
        Table(
            "acceptance_length",
            "Tokens per round",
            "tokens",
            "Mean acceptance length: 1 + accepted draft tokens per round of a sequence, the bonus token included.",
            f.by_cell(comparison, f.figure("mean_acceptance_length"), speculating=True),
        ),
        Table(
            "acceptance_by_category",
            "Tokens per round by category",
            "tokens",
            "Mean acceptance length of the prompts of each category, and of each turn of chats. Micro: every round weighs alike. "
            "Macro: every category does.",
            f.by_category(comparison),
            f.BY_CATEGORY,
        ),
        Table(
            "acceptance_by_turn",
            "Tokens per round, mean of turns",
            "tokens",
            "The mean over prompts, each turn of a chat one of them, of each one's mean acceptance length, as in SPEED-Bench: a "
            "turn of few rounds weighs as much as one of many.",
            f.by_turn(comparison),
            f.BY_TURN,
        ),
        Table(
            "draft_acceptance_rate",
            "Accepted tokens per verified node",
            "share of nodes",
            "Accepted draft tokens over the draft tokens that the target has scored: those of chains, and all nodes of trees.",
            f.shares(comparison, "draft_acceptance_rate", speculating=True),
        ),
        Table(
            "calibration",
            "Calibration of confidence",
            "share of tokens",
            "Draft tokens by the probability with which the policy expected them to be accepted, given those before them: its mean "
            "over the tokens of a tenth, and the share of them that was accepted. All repeats together, warm-up runs included.",
            f.each(comparison, f.calibration),
            ("scheme", "batch_size", "predicted", "accepted", "tokens"),
        ),
        Table(
            "acceptance_by_position",
            "Acceptance by position",
            "share of drafts",
            "Of the drafts that reach a position before their sequence's limit, the share whose token there was accepted. "
            "Schemes less than half a percentage point apart share a line, all batch sizes together.",
            f.each(comparison, f.by_position),
            ("scheme", "batch_size", "position", "drafted", "accepted", "rate"),
        ),
        Table(
            "conditional_acceptance",
            "Conditional acceptance by position",
            "share of drafts",
            "Of the drafts that reach a position before their sequence's limit and whose tokens before it were all accepted, the "
            "share whose token there was accepted.",
            f.each(comparison, lambda lines: f.by_position(lines, "reached")),
            ("scheme", "batch_size", "position", "reached", "accepted", "rate"),
        ),
        Table(
            "acceptance_by_branch",
            "Acceptance by branch",
            "share of paths",
            "Of the accepted paths of trees that reach a branch of a depth, the share in which its node was accepted; branch 1 is "
            "a node's first child. The bars of a depth add up to the acceptance at that depth, all batch sizes together.",
            f.each(comparison, f.by_branch),
            ("scheme", "batch_size", "depth", "branch", "reached", "accepted", "rate"),
        ),
        Table(
            "acceptance_histogram",
            "Accepted tokens per round",
            "share of rounds",
            "Rounds of a sequence by the number of accepted draft tokens, the bonus token left out. "
            "Schemes less than half a percentage point apart share their bars, all batch sizes together.",
            f.each(comparison, f.histogram),
            ("scheme", "batch_size", "accepted", "rounds", "share"),
        ),
        Table(
            "equality",
            "Equal to plain decoding",
            "sequences",
            "Sequences whose token ids are those of plain decoding at batch size 1, in the first run. "
            "Partial: the mean share of a sequence that is a common start.",
            f.equality(comparison),
            EQUALITY,
        ),
        Table(
            "grouping_rate",
            "Grouping rate",
            "share of rounds",
            "Of decoding rounds with more than one row, the share whose rows all had one length.",
            grouping,
            nothing=f"{named(grouping)} formed no batch of several rows of one length.",
        ),
        Table(
            "padding_share",
            "Padding share",
            "share of places",
            "Of the rectangle rows × longest row, the share that holds no token, over decoding rounds.",
            f.shares(comparison, "padding_share", speculating=True),
            nothing="No batch had padding: no place of a batch is without a token.",
        ),
        Table(
            "filler_share",
            "Filler share",
            "share of tokens",
            "Of the tokens that target and draft model computed, the share that meant nothing.",
            f.shares(comparison, "filler_share"),
            nothing="Neither model computed padding: every token that they computed was real.",
        ),
        Table(
            "peak_kv_bytes",
            "Peak KV cache",
            "bytes",
            "The most bytes that all KV caches of a run held, the draft model's included.",
            f.by_cell(comparison, f.figure("peak_kv_bytes")),
        ),
        Table(
            "state_bytes",
            "States",
            "bytes",
            "The most bytes of the states of layers without keys and values, a part of the peak KV cache.",
            f.state_bytes(comparison),
        ),
        Table(
            "peak_device_bytes",
            "Peak device memory",
            "bytes",
            "The most bytes of the target's device in use during a run: models, caches, and what forwards need meanwhile.",
            f.device_bytes(comparison),
        ),
        Table(
            "memory",
            "Tokens per second against memory",
            "tokens/s",
            "Tokens per second over the most bytes in use: of the target's device where known, else of all caches. A line "
            "goes through a scheme's batch sizes: up is faster, left is smaller.",
            f.memory(comparison),
            f.MEMORY,
        ),
    ]
    return {table.name: table for table in every}


def unit(comparison: Comparison) -> str:
    """Return the unit of the clock that requests are timed with."""
    return "seconds" if clock_unit(comparison) == "s" else "passes of the target"
