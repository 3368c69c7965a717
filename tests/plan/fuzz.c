/* SPDX-License-Identifier: MIT */
/* Any text is refused or gives a plan that holds what plan.h promises; for libFuzzer, and for fuzz_drive.c. */
#include <stdint.h>
#include "model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	plan_model_try(data, bytes);
	return 0;
}
