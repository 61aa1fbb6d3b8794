"""Plug-in for stock vLLM: exact expert signatures of prompts, and the activations of decode steps.

vLLM finds it by the entry points ``vllm.general_plugins`` and ``vllm.endpoint_plugins``, both named ``eldr``. Torch and
vLLM are imported by the modules that run inside an engine only, never by this package itself.

================  ===================================================================================================
``hooks``         where vLLM calls: the two entry points (``plugin``), the KV connector that moves no KV and hands vLLM's hooks to the
                  half of a process (``connector``), ``/eldr/v1/activations`` (``endpoint``), and which configuration would
                  count wrongly, so that nothing is counted (``compatibility``)
halves            ``scheduler`` in the scheduler's process, ``worker`` in the workers', ``orders`` from one to the other
``prefill``       prompts are counted per KV block: ``prompts`` tracks which are complete, and hands their counts to answers and records;
                  ``provenance``, in plain Python, which blocks can be summed
``decode``        answers are counted per request: ``tracking`` (which positions count) and ``deadline`` (KV that is not there in time is
                  not used) in plain Python; ``ring`` carries finished requests to the API server, where ``records`` makes pages of them
``balance``       replicas chosen by activated experts: ``setting`` reads whether, ``start`` compares the ranks, ``choice`` exchanges in each
                  step what ``choose_host`` or ``choose_triton`` chose by the rules of ``choose``; ``replicas`` and ``placement`` are
                  the two places that hook into vLLM, ``agreement`` asks all ranks
``capture``       how the ``routing`` of a forward pass becomes visible, or is ``recompute``-d from logits, ``union`` over ranks that have
                  requests of their own, and the counting itself: ``kernels`` in torch, ``kernels_triton`` for GPUs; ``cache`` names
                  the KV blocks that are counted by
leaves            ``messages`` from worker to scheduler, ``steps`` of vLLM's scheduler, ``metrics`` for Prometheus, ``figures`` of balance,
                  ``errors`` that end an engine, ``refusal``: where it leaves the reason, ``needs``: what is taken from
                  vLLM and which of it is missing, ``install``: the plug-in's copy for engines
================  ===================================================================================================
"""
