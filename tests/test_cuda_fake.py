"""Every line that a GPU would run, on torch's fake CUDA tensors: devices, types and shapes are checked, numbers are not.

It needs torch as built for CUDA (what `pip install torch` gives on Linux) and no GPU. What the host reads of a device is made up.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext

import numpy as np
import pytest

from stepmark.backends import Completions, Message, ScoreRequest
from stepmark.models.policies import load_policy

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

from checkpoints import FAMILY_EXAMPLES, load_family  # noqa: E402
from stepmark.models import backbone, checkpoint, placement  # noqa: E402
from stepmark.training.examples import Dropped  # noqa: E402
from stepmark.training.objectives.steps import HardLabels, SoftLabels, TargetTokens  # noqa: E402
from test_cuda import SOLUTIONS  # noqa: E402
from tiny_base import branching, net_for, write_base  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.version.cuda is None, reason="this torch is built without CUDA"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here: tests/test_cuda.py"),
]


class Host(TorchFunctionMode):
    """What the host asks of fake tensors: numbers are 0, a copy to the host is zeros, truth is true."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name, first = getattr(function, "__name__", ""), args[0] if args else None
        if name == "pin_memory":
            return first
        if isinstance(first, FakeTensor):
            zeros = np.zeros(tuple(first.shape), dtype=float if first.is_floating_point() else int)
            answers = {"tolist": zeros.tolist, "numpy": lambda: zeros, "__bool__": lambda: True}
            answers |= dict.fromkeys(
                ("item", "__float__", "__int__", "__index__"), lambda: zeros.dtype.type(0).item()
            )
            if name == "cpu":
                with unset_fake_temporarily():
                    return torch.zeros(tuple(first.shape), dtype=first.dtype)
            if name in answers:
                return answers[name]()
        with unset_fake_temporarily() if name == "numpy" else nullcontext():
            return function(*args, **(kwargs or {}))


@pytest.fixture
def fake_gpu(monkeypatch):
    """A context with a fake GPU of 80 GB, which only stepmark sees."""

    def for_stepmark(ours, others):
        def choose(*args):
            name = sys._getframe(1).f_globals.get("__name__", "")
            return (ours if name.startswith("stepmark") else others)(*args)

        return choose

    monkeypatch.setattr(torch.cuda, "is_available", for_stepmark(lambda: True, torch.cuda.is_available))
    monkeypatch.setattr(torch.cuda, "device_count", for_stepmark(lambda: 1, torch.cuda.device_count))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *device: (60 * 10**9, 80 * 10**9))
    # Fake tensors take no part in inference mode.
    monkeypatch.setattr(torch, "inference_mode", for_stepmark(torch.no_grad, torch.inference_mode))
    read = checkpoint.Tensors.get

    def get(self, name):
        with unset_fake_temporarily(), torch._C.DisableTorchFunction():
            return read(self, name).clone()

    monkeypatch.setattr(checkpoint.Tensors, "get", get)
    load = backbone.load_network

    def load_network(maker, folder, *, device, **settings):
        with unset_fake_temporarily(), torch._C.DisableTorchFunction():
            network = load(maker, folder, device="cpu", **settings)
        return network.to(device)

    for module in (backbone, placement):
        monkeypatch.setattr(module, "load_network", load_network)

    def apply(self, function):
        for module in self.modules():
            for stored in (module._parameters, module._buffers):
                for name, tensor in stored.items():
                    if tensor is not None:
                        made = function(tensor.detach())
                        learned = isinstance(tensor, torch.nn.Parameter)
                        stored[name] = torch.nn.Parameter(made, tensor.requires_grad) if learned else made
        return self

    @contextmanager
    def context():
        # Parameters cannot become fake in place.
        with monkeypatch.context() as patch, FakeTensorMode(allow_non_fake_inputs=True), Host():
            patch.setattr(torch.nn.Module, "_apply", apply)
            yield

    return context


@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILY_EXAMPLES)
def test_grading_and_a_session(zoo, fake_gpu, family, dtype, quantize):
    load_family(zoo, family)  # is made, if need be, of real tensors
    requests = [ScoreRequest(problem=s.problem.text, steps=tuple(s.texts)) for s in SOLUTIONS if s.steps]
    with fake_gpu():
        for budget in (64, None):
            prm = load_family(zoo, family, device="cuda", dtype=dtype, quantize=quantize, token_budget=budget)
            results = list(prm.score_many(SOLUTIONS))
            assert [len(r.scores) for r in results] == [len(s.steps) for s in SOLUTIONS]
        session = prm.open_session()
        for _ in range(2):
            assert len(session.score(requests, lambda *_: None)) == len(requests)


@pytest.mark.parametrize("memory", [0, 4096])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_policy(fake_gpu, dtype, memory):
    prompt = (Message(role="user", content=SOLUTIONS[0].problem.text),)
    with fake_gpu():
        policy = load_policy("stepmark:arithmetic", device="cuda", dtype=dtype, memory_tokens=memory)
        for request in (
            Completions(prompt=prompt, max_tokens=6),
            Completions(prompt=prompt, max_tokens=6, temperature=0.8, top_p=0.9, top_k=5, n=3),
        ):
            assert [len(reply) for reply in policy.complete_many([request] * 2)] == [request.n] * 2


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize(
    "objective", [HardLabels(language_weight=0.3), SoftLabels(), TargetTokens()], ids=repr
)
def test_a_pass_of_training(fake_gpu, tmp_path, objective, rank, dtype, again):
    """Forward only: torch's engine of gradients asks the driver for streams."""
    net = net_for(write_base(tmp_path), objective, rank=rank, dtype=dtype, gradient_checkpointing=again)
    net.set_head(objective.head(net))
    with fake_gpu():
        net.model.to("cuda"), net.head.to("cuda")
        net.device = "cuda"
        items = objective.items(branching(1), net, budget=400, dropped=Dropped(), every_step=False)
        assert objective.fit(net, list(items)).loss.device.type == "cuda"
