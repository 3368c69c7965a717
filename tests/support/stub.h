/* SPDX-License-Identifier: MIT */
#pragma once
/* Functions of a fake in rows: STUB returns a value and does nothing else, NOTHING does nothing. */
#define STUB(type, name, params, ...) \
	type name params \
	{ \
		return __VA_ARGS__; \
	}
#define NOTHING(name, params) \
	void name params \
	{ \
	}
