/* SPDX-License-Identifier: MIT */
/* Any bytes as the choices of the walk over the order of launches. A step that the tables do not allow ends the
 * process. */
#include "tests/comm/order_books.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct choices choices = { .bytes = data, .n = bytes };

	books_reset();
	books_walk(&choices, 2000, true);
	return 0;
}
