"""Plug-in for stock vLLM: exact expert signatures of prompts, and the activations of decode steps.

vLLM finds it by the entry points ``vllm.general_plugins`` and ``vllm.endpoint_plugins``, both named ``eldr``. Torch and
vLLM are imported by the modules that run inside an engine only, never by this package itself.

==================  =================================================================================================
``plugin``          the two entry points
``connector``       the KV connector that moves no KV: vLLM's hooks, handed to one half of a role
``prefill``         record counts per KV block, reduce a prompt's blocks, pop the sum into the answer
``provenance``      which KV blocks hold counts that can be summed; plain Python
``decode``          count per request, and the union of every step
``deadline``        KV that is not there in time is not used; plain Python
``tracking``        which positions of which request a decode step counts; plain Python
``capture``         how the routing of a forward pass becomes visible
``union``           the experts of a step over ranks that have requests of their own
``kernels``         the counting itself in torch; ``kernels_triton`` the same for GPUs
``replicas``        where vLLM lets us choose among an expert's replicas: the one place that knows
``expert_parallel`` the start of an expert-parallel worker: ranks are compared, then replicas are chosen by activated experts
``balance``         that choice, per layer and step; ``balance_setting`` says whether, ``balance_torch`` and ``balance_triton`` which
``placement``       where EPLB puts replicas: by activation
``agreement``       whether ranks have the same in hand
``ring``            finished requests, from the scheduler's process to the API server's; ``rings`` reads those of several ranks
``endpoint``        ``/eldr/v1/activations``; ``records`` makes its pages
``metrics``         what Prometheus sees
``compatibility``   what would count wrongly, and is refused at start
``refusal``         where an engine that is refused leaves the reason
==================  =================================================================================================
"""
