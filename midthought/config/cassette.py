"""Settings of cassettes: recording and replaying the calls of episodes, and injected faults (docs/cassettes.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from midthought.config.section import Harmless, Section

CallKind = Literal["tool", "feedback", "judge", "completion", "environment"]
"""Who answers a call: a tool, a critic outside of a tool call, a judge, the engine, the environment."""
FaultName = Literal["error", "timeout", "slow", "garbled"]

_POSSIBLE: dict[str, tuple[str, ...]] = {
    "tool": ("error", "timeout", "slow", "garbled"),
    "feedback": ("error", "timeout", "slow"),
    "judge": ("error", "timeout", "slow", "garbled"),
    "completion": ("error", "timeout", "slow"),
    "environment": ("error", "timeout", "slow"),
}


class FaultRule(Section):
    """One rule of `cassette.faults`. A call gets the fault of the first rule that applies to it. All conditions must hold."""

    fault: Literal["any", "error", "timeout", "slow", "garbled"] = "any"
    """`error`: the call raises ConnectionError. `timeout`: it does not return before its deadline. `slow`: it starts after
    `seconds`. `garbled`: the characters of its text are shuffled. `any`: one of those that are possible."""
    kind: CallKind = "tool"
    """Kind of the calls."""
    name: str = ""
    """Name of the tool, the critic or the judge's model; empty: any."""
    call: int | None = Field(None, ge=1)
    """Number of the call among the calls of this kind and name in its episode, from 1; null: any."""
    episode: int | None = Field(None, ge=0)
    """Number of the episode in its part, from 0; null: any."""
    part: str = ""
    """Name of the part, such as `train-000002`, with `*` for any characters; empty: any."""
    rate: float = Field(1.0, ge=0, le=1)
    """Share of these calls that get the fault."""
    seconds: float = Field(1.0, ge=0)
    """Delay of a `slow` call."""

    @property
    def choices(self) -> tuple[str, ...]:
        """The faults among which one is drawn."""
        return _POSSIBLE[self.kind] if self.fault == "any" else (self.fault,)

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.fault not in ("any", *_POSSIBLE[self.kind]):
            raise ValueError(
                f"fault={self.fault!r} with kind={self.kind!r}: such a call can have {', '.join(_POSSIBLE[self.kind])}"
            )
        return self


class CassetteConfig(Section):
    """Recording and replaying the calls of episodes, and injected faults (docs/cassettes.md)."""

    record: str = ""
    """Folder in which the calls of all episodes are recorded: tools, critics, judges, completions of the engine. Empty: none."""
    replay: str = ""
    """Folder of a recorded run. Its results are returned instead of making the calls; a call that was not recorded stops the
    run. Empty: calls are made."""
    completions: bool = True
    """Also record and replay the completions of the engine; a replay then needs no engine and no model servers. False: the
    engine samples in the replay, too, which repeats the run with `inference.deterministic=true` only."""
    latency: Harmless[bool] = False
    """Return replayed results after the recorded duration of the call. False: at once."""
    faults: list[FaultRule] = Field(default_factory=list)
    """Faults of calls, by rate or by script: `[{rate: 0.1}]`, `[{name: search, call: 3, fault: timeout}]`. Not in a replay, which
    returns the recorded faults."""
    fault_seed: int = 0
    """Seed of the draws of `rate` and of `fault: any`."""

    @property
    def is_used(self) -> bool:
        """Whether calls are recorded, replayed or get faults."""
        return bool(self.record or self.replay or self.faults)

    @property
    def replays_completions(self) -> bool:
        """Whether the run needs no engine."""
        return bool(self.replay) and self.completions

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.record and self.replay:
            raise ValueError(
                f"record={self.record!r} with replay={self.replay!r}: a run records or replays; leave one of both empty"
            )
        if self.faults and self.replay:
            raise ValueError(
                f"faults with replay={self.replay!r}: after a fault the policy reads something that was not recorded; inject "
                "faults while recording, and replay that"
            )
        return self
