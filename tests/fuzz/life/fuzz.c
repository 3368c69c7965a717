/* SPDX-License-Identifier: MIT */
/* Any bytes as the choices of the walk over a handle's life. A step that the tables do not allow ends the process. */
#include "tests/shim/life_walk.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct choices choices = { .bytes = data, .n = bytes };

	life_walk(&choices, 20000, NULL);
	return 0;
}
