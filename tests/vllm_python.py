"""The interpreter of an environment that has vLLM, which tests with a real vLLM need."""

import os

import pytest

PYTHON = os.environ.get("MIDTHOUGHT_VLLM_PYTHON", "")
WHY_NOT = "MIDTHOUGHT_VLLM_PYTHON does not name the interpreter of an environment that has vLLM"
needs_vllm = [pytest.mark.slow, pytest.mark.skipif(not PYTHON, reason=WHY_NOT)]
