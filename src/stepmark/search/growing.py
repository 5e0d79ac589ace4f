"""The tree that a search grows: what it asks for, what it may spend, what comes of it.

All searches grow their trees here, so that budgets, costs, and steps that are of no use are treated alike.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import replace
from typing import Any, final

from stepmark.batching import Graded, Release, Request, Score, Write, Written
from stepmark.errors import BackendError, InputError
from stepmark.metrics.aggregate import aggregate, check_score
from stepmark.problems.extraction import find_answer
from stepmark.records import Problem
from stepmark.search.nodes import Node, Nodes, added, value_of
from stepmark.search.searching import Candidate, Found, Searching, Stopped, Trace
from stepmark.search.spending import Spending

_FOLLOWS = ("a step before it", "every step after it", "says the same")
"""Beginnings of reasons that follow from another step's."""


@final
class Tree:
    """One problem's tree.

    Args:
        problem: which.
        settings: of the search.
        method: its name.
        scored: whether a PRM is asked at all.
    """

    def __init__(self, problem: Problem, settings: Searching, method: str, *, scored: bool = True) -> None:
        self.problem = problem
        self.how, self.grading = settings.how, settings.grading
        self.method = method
        self.scored = scored
        self.prompt = self.how.prompt_of(problem)
        self.nodes = Nodes(self.how)
        self.root = self.nodes.root
        self.spending = Spending(settings.budget, settings.sizes, scored=scored)
        self.stopped: Stopped = "done"
        self.note = ""
        self._asked: dict[str, int] = {}
        self._greedy: set[Write] = set()
        self._charged: set[tuple[str, ...]] = set()
        self._held: set[tuple[str, ...]] = set()
        self._release: list[tuple[str, ...]] = []
        self._longest: dict[str, int] = {}

    def grow(
        self,
        asks: Sequence[tuple[Node, int]],
        round_: int,
        *,
        dedupe: bool = True,
        ahead: bool = False,
        partial: int | None = None,
    ) -> Generator[Any, Any, list[list[Node]]]:
        """Write steps after some nodes and score them.

        Args:
            asks: nodes, best first (where the budget ends, the last ones go without), and how many steps after each.
            round_: for the trace.
            dedupe: give up a step that says what an earlier one after the same node says.
            ahead: look ahead: greedily, and without a word on what is a duplicate.
            partial: write only so many tokens; a step that is longer is then `partial` and not given up.

        Where the budget does not do for all of them and no solution is finished, what is left takes the best of the nodes to its
        end, greedily: half a round would be of no use.

        Returns:
            For each ask, the nodes that are alive, in the order in which they were written. Where the budget does not allow
            them all, `stopped` is set.
        """
        heat = 0.0 if ahead else self.how.temperature
        limit = self.how.max_tokens if partial is None else min(partial, self.how.max_tokens)
        wanted = [min(count, 1) if heat == 0 else count for _, count in asks]
        grown: list[list[Node]] = [[] for _ in asks]
        kind = "step" if partial is None else "beginning"
        while any(wanted) and not self.spent:
            count, most = self.spending.allow(sum(wanted), limit, self._longest.get(kind, 0))
            if not count:
                self.stop("budget")
                break
            if count < sum(wanted) and self._longest.get(kind) and not ahead and not self.finished:
                best = min((node for node, _ in asks if node.alive), key=lambda node: -value_of(node.rank))
                if best is not self.root:
                    self.stop("budget")
                    yield from self.write_whole(best, 1, round_, temperature=0.0, last=True)
                    break
            places, writes = [], []
            for place, (node, _) in enumerate(asks):
                given = min(wanted[place], count)
                if given and node.alive:
                    places.append(place)
                    writes.append(self._write(node, given, heat, most, (self.how.stop,)))
                wanted[place] -= given
                count -= given
            fresh = []
            for place, texts in zip(
                places,
                (yield from self._written(writes, [asks[place][0] for place in places], kind)),
                strict=True,
            ):
                for written in texts:
                    self._budget_cut(written, most < limit)
                    child = self.nodes.add(
                        asks[place][0],
                        written,
                        round_,
                        cut=most < limit,
                        partial=partial is not None and partial < self.how.max_tokens,
                        dedupe=dedupe and not ahead,
                    )
                    grown[place].append(child)
                    fresh.append(child)
            yield from self.score(fresh)
        return [[node for node in some if node.alive] for some in grown]

    def write_whole(
        self, node: Node, count: int, round_: int, *, temperature: float | None = None, last: bool = False
    ) -> Generator[Any, Any, list[Node]]:
        """Write solutions to their end in one go, from a node, and score their steps.

        Args:
            node: after which.
            count: how many.
            round_: for the trace.
            temperature: None for that of the settings.
            last: also where the search has stopped: with what is left of the budget.

        Returns:
            The last node of each that the policy ended, in order. The others are cut off and given up.
        """
        heat = self.how.temperature if temperature is None else temperature
        limit = self.how.max_solution_tokens
        wanted = min(count, 1) if heat == 0 else count
        ends: list[Node] = []
        while wanted and node.alive and (last or not self.spent):
            given, most = self.spending.allow(wanted, limit, self._longest.get("solution", 0))
            if not given:
                self.stop("budget")
                break
            wanted -= given
            write = self._write(node, given, heat, most, ())
            [texts] = yield from self._written([write], [node], "solution")
            fresh = []
            for written in texts:
                self._budget_cut(written, most < limit)
                fresh.append(self.nodes.add_whole(node, written, round_, cut=most < limit))
            ends += fresh
            yield from self.score([step for end in fresh for step in end.below(node)])
        return [end for end in ends if end.alive]

    def go_on(self, nodes: Sequence[Node]) -> Generator[Any, Any, None]:
        """Write partial steps to their end and score them anew."""
        limit = self.how.max_tokens
        waiting = [node for node in nodes if node.partial and node.alive]
        while waiting:
            count, most = self.spending.allow(len(waiting), limit, self._longest.get("step", 0))
            if not count or self.spent:
                self.stop("budget")
                for node in waiting:
                    node.prune("the budget was spent before the step was at its end")
                return
            now, waiting = waiting[:count], waiting[count:]
            writes = [self._write(node, 1, self.how.temperature, most, (self.how.stop,)) for node in now]
            for node, texts in zip(now, (yield from self._written(writes, now, "step")), strict=True):
                for written in texts:
                    self._budget_cut(written, most < limit)
                    self.nodes.extend(node, written, cut=most < limit)
                    self.nodes.unite(node)
            yield from self.score(now)

    def score(self, nodes: Sequence[Node]) -> Generator[Any, Any, None]:
        """Score the last step of nodes that are alive and have no score yet, all of them in one round."""
        if not self.scored:
            return
        fresh = [node for node in nodes if node.alive and node.step and node.score is None]
        asks = [Score(problem=self.problem.text, steps=node.steps) for node in fresh]
        for node, reply in zip(fresh, (yield from self._each(asks)), strict=True):
            assert node.parent is not None
            if not node.parent.alive:
                node.prune("a step before it was given up")
            elif isinstance(reply, InputError):
                node.prune(f"the PRM cannot read it: {reply.message}")
            else:
                self._graded(node, node.parent, reply)
        for node in nodes:
            if node.alive and not node.step and node.parent is not None:
                # An end without a step is as good as what stands before it.
                above = node.parent
                node.scores, node.aggregate, node.rank = above.scores, above.aggregate, above.rank
                if not above.alive:
                    node.prune("a step before it was given up")

    def stop(self, why: Stopped, note: str = "") -> None:
        """Set why the search ends; the first reason stays."""
        if self.stopped == "done":
            self.stopped, self.note = why, note

    def release_but(self, nodes: Iterable[Node]) -> None:
        """Only these prefixes will be continued: what the PRM keeps of others may go."""
        needed = {node.steps for node in nodes}
        self._release += sorted(self._held - needed)
        self._held &= needed

    @property
    def spent(self) -> bool:
        """The budget allows nothing more."""
        return self.stopped == "budget"

    @property
    def finished(self) -> list[Node]:
        """Nodes at which a solution ends that was not given up, in the order in which they were written."""
        return [node for node in self.nodes.all if node.ended and node.alive]

    def unfinished(self) -> Node | None:
        """The best of the longest way: the best node that is neither at its end nor given up; None where there is none."""
        parents = {node.parent for node in self.nodes.all if node.alive}
        open_ = [node for node in self.nodes.all if node.running and node.step and node not in parents]
        return min(open_, key=lambda node: (-value_of(node.aggregate), node.number), default=None)

    def candidate(self, node: Node) -> Candidate:
        """A node as a solution."""
        found = find_answer(node.text)
        scores = node.scores + (None,) * (len(node.steps) - len(node.scores))
        return Candidate(
            node=node.number,
            steps=node.steps,
            text=node.text,
            scores=scores,
            aggregate=node.aggregate,
            finished=node.ended,
            answer=None if found is None else found.text,
        )

    def found(self, candidates: Sequence[Candidate], chosen: int | None) -> Generator[Any, Any, Found]:
        """Let go of everything, and the result.

        Args:
            candidates: what there was to choose from.
            chosen: index of the chosen one.
        """
        if chosen is None or not candidates[chosen].finished:
            whys = [node.why for node in self.nodes.all if node.why and not node.why.startswith(_FOLLOWS)]
            self.stop("dead end", f"of the last step that was given up: {whys[-1]}" if whys else "")
        for node in self.finished:
            node.state = "finished"
        if chosen is not None:
            for node in self.nodes.all[candidates[chosen].node].path:
                node.state, node.why = "chosen", ""
        self.release_but([])
        if self._release:
            yield Release(problem=self.problem.text, prefixes=tuple(self._release))
        cost = self.spending.cost()
        nodes = tuple(node.record() for node in self.nodes.all)
        assert cost.decoded is None or cost.decoded == sum(node.policy_tokens or 0 for node in nodes)
        assert cost.prm is None or cost.prm == sum(node.prm_tokens or 0 for node in nodes)
        return Found(
            problem=self.problem,
            method=self.method,
            chosen=chosen,
            candidates=tuple(candidates),
            trace=Trace(
                method=self.method, aggregate=self.grading.aggregate, kind=self.grading.kind, nodes=nodes
            ),
            cost=cost,
            stopped=self.stopped,
            note=self.note,
        )

    def _write(self, node: Node, count: int, heat: float, most: int, stop: tuple[str, ...]) -> Write:
        first = 0
        if heat:
            # By number, so that what is drawn depends on this search alone, and searches with the same settings share samples.
            first = self._asked.get(node.text, 0)
            self._asked[node.text] = first + count
        return Write(
            prompt=self.prompt,
            prefill=node.text,
            n=count,
            temperature=heat,
            top_p=self.how.top_p,
            max_tokens=most,
            stop=stop,
            seed=self.how.seed,
            first=first,
        )

    def _written(
        self, writes: Sequence[Write], nodes: Sequence[Node], kind: str
    ) -> Generator[Any, Any, list[Sequence[Written]]]:
        """The texts of each request; none where the policy cannot go on, whose node is then given up."""
        texts: list[Sequence[Written]] = []
        for write, node, reply in zip(writes, nodes, (yield from self._each(writes)), strict=True):
            if isinstance(reply, InputError):
                if node.parent is None:
                    raise reply
                node.prune(f"the policy cannot go on from here: {reply.message}")
                texts.append(())
                continue
            self._longest[kind] = max([self._longest.get(kind, 0), *(one.tokens or 0 for one in reply)])
            if not write.temperature and write in self._greedy:
                # The likeliest text after the same text is the same one, and was paid for.
                texts.append([replace(one, tokens=0) for one in reply])
                continue
            self._greedy.add(write)
            self.spending.wrote(write, reply)
            texts.append(reply)
        return texts

    def _each(self, requests: Sequence[Request]) -> Generator[Any, Any, list[Any]]:
        """Ask for several things at once; an `InputError` in the place of each that cannot be answered."""
        if not requests:
            return []
        released: tuple[Request, ...] = ()
        if self._release:
            released = (Release(problem=self.problem.text, prefixes=tuple(self._release)),)
            self._release = []
        try:
            replies = yield (*requests, *released)
            return list(replies[: len(requests)])
        except InputError as error:
            if len(requests) == 1:
                return [error]
        # One of them failed, and it is not told which; replies to the others are recorded.
        each: list[Any] = []
        for request in requests:
            try:
                each.append((yield request))
            except InputError as error:
                each.append(error)
        return each

    def _budget_cut(self, written: Written, lowered: bool) -> None:
        if lowered and written.finish == "length":
            self.stop("budget")

    def _graded(self, node: Node, parent: Node, reply: Graded) -> None:
        try:
            score = check_score(reply.score, self.grading.kind, step=len(node.steps) - 1)
        except InputError as error:
            raise BackendError(f"the PRM, of {self.problem.text[:60]!r}: {error}") from None
        self._held.add(node.steps)
        tokens, root = reply.tokens, reply.root or 0
        # A PRM that reads whole prefixes (root 0) begins anew each time.
        before = 0 if not root else parent.read if parent.step else root
        node.read = before + (tokens or 0)
        if node.steps not in self._charged:
            if tokens is not None and not self._charged:
                tokens, before = (
                    tokens + root,
                    before - root,
                )  # the problem itself, at the first prefix that is read
            self._charged.add(node.steps)
            node.prm_tokens = added(node.prm_tokens, tokens)
            self.spending.read(tokens, before)
        node.scores = (*parent.scores, score)
        try:
            node.aggregate = aggregate(node.scores, self.grading.aggregate, kind=self.grading.kind)
        except InputError as error:
            node.prune(f"its steps have no {self.grading.aggregate}: {error.message}")
        node.rank = node.aggregate
