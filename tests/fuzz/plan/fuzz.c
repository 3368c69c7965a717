/* SPDX-License-Identifier: MIT */
/* Any text is refused or gives a plan that holds what plan.h promises; for libFuzzer, and for fuzz_drive.c. */
#include "tests/support/fuzz_try.h"
#include "tests/plan/model.h"

int fuzz_try(const void *text, size_t bytes)
{
	return plan_model_try(text, bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	fuzz_try(data, bytes);
	return 0;
}
