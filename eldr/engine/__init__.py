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
``kernels``         the counting itself in torch; ``kernels_triton`` the same for GPUs
``ring``            finished requests, from the scheduler's process to the API server's
``endpoint``        ``/eldr/v1/activations``; ``records`` makes its pages
``metrics``         what Prometheus sees
``compatibility``   what would count wrongly, and is refused at start
==================  =================================================================================================
"""
