"""Runs many methods at once and answers their requests in batches.

A *method* (a labeller, a search, a generative PRM) is a generator: it yields requests, is sent replies,
and returns its result. It does no I/O, so its code can be the paper's pseudo-code::

    def two_opinions(question):
        first, second = yield Write(prompt=question, n=2, temperature=0.7)
        odds = yield Choose(prompt=question, options=(first.text, second.text))
        return odds

`run` drives many of them in rounds. In each round it gathers what all live methods ask, answers all requests
of one kind in one call of their answerer, records each reply in the store *before* a method sees it, and
sends the replies back. A run that was stopped, whatever stopped it, is therefore resumed by running it again
over the same store: recorded replies are replayed and only what is missing is asked.

What counts as the same request: everything that shapes the reply (the kind, the answerer's identity, prompt,
prefill, sampling settings, seed) is hashed into one key (`content_key`), and the samples of a `Completions` are
numbered under that key. `n` is not part of the key: asking for 16 where 8 are recorded asks for 8 more.

* `Write(first=None)`, the default, means *fresh* samples: the driver numbers the samples of equal requests
  one after the other, in the order in which they are asked, so no sample is handed out twice in one run. The
  order depends on the methods, their order and `in_flight`, not on timing, so the same run replays the same
  samples.
* `Write(first=0)` means *exactly* the samples 0..n-1: equal requests share them, within a run and between
  runs. A generative PRM asks so, because the score of a prefix must not depend on who else asked for it.
* A `ChoiceLogprobs` is a fact about the model, a `VerdictRequest` one about two answers, a `ScoreRequest` one about a PRM and a prefix; all are
  always shared.
* A `Release` asks for nothing: it says which prefixes of a problem will not be scored further.

Where a round asks for scores and for other things, the PRM answers in a thread beside the others. (`search.run` lets half of
its searches begin a round later, so that one half is scored while the other is written.)

A method that has several questions at once yields them as a tuple; one that has several *methods* at once runs them
`together`, and what they ask in a round is asked as one.

Rounds keep replay exact and the calls large; their price is that a round lasts as long as its slowest
request. More methods `in_flight` hide that.
"""

from stepmark.backends.driver import Answerer as Answerer
from stepmark.backends.driver import Method as Method
from stepmark.backends.driver import Ready as Ready
from stepmark.backends.driver import Reply as Reply
from stepmark.backends.driver import ReplyStore as ReplyStore
from stepmark.backends.driver import Result as Result
from stepmark.backends.driver import run as run
from stepmark.backends.driver import together as together
from stepmark.backends.requests import INSTRUCTION as INSTRUCTION
from stepmark.backends.requests import ChoiceLogprobs as ChoiceLogprobs
from stepmark.backends.requests import Completion as Completion
from stepmark.backends.requests import Completions as Completions
from stepmark.backends.requests import Finish as Finish
from stepmark.backends.requests import Message as Message
from stepmark.backends.requests import Prompt as Prompt
from stepmark.backends.requests import Release as Release
from stepmark.backends.requests import Request as Request
from stepmark.backends.requests import Role as Role
from stepmark.backends.requests import ScoreRequest as ScoreRequest
from stepmark.backends.requests import ScoreSolution as ScoreSolution
from stepmark.backends.requests import StepScore as StepScore
from stepmark.backends.requests import VerdictRequest as VerdictRequest
from stepmark.backends.requests import content_key as content_key
from stepmark.backends.requests import cut_at_stop as cut_at_stop
from stepmark.backends.requests import problem_prompt as problem_prompt
from stepmark.backends.requests import sample_seed as sample_seed
