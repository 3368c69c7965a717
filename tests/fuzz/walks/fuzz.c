/* SPDX-License-Identifier: MIT */
/* Any bytes as the choices of a walk over a state machine. A step that its table does not allow ends the process. */
#include "tests/comm/comm_life_walk.h"
#include "tests/comm/order_books.h"
#include "tests/shim/call_walk.h"
#include "tests/shim/life_walk.h"
#include "tests/support/fuzz_try.h"

static void walk_order(struct choices *choices)
{
	books_reset();
	books_walk(choices, 2000, true);
}

static void walk_handle(struct choices *choices)
{
	life_walk(choices, 20000, NULL);
}

static void walk_call(struct choices *choices)
{
	call_walk(choices, 20000, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static void (*const walks[])(struct choices *choices) = { walk_order, comm_life_walk, walk_handle, walk_call };
	struct choices choices = { .bytes = data, .n = bytes };

	walks[choices_below(&choices, sizeof(walks) / sizeof(walks[0]))](&choices);
	return 0;
}
