/* SPDX-License-Identifier: MIT */
#include "tests/device/mock_base.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "tests/support/stub.h"

char mock_log_text[512];
int mock_log_count;
struct shunt_config mock_config;

STUB(const struct shunt_config *, shunt_config, (void), &mock_config)

static void record_log(const char *fmt, va_list ap)
{
	vsnprintf(mock_log_text, sizeof(mock_log_text), fmt, ap);
	mock_log_count++;
}

#define RECORDER(name) \
	void name(const char *fmt, ...) \
	{ \
		va_list ap; \
		va_start(ap, fmt); \
		record_log(fmt, ap); \
		va_end(ap); \
	}
RECORDER(shunt_error)
RECORDER(shunt_warn)
NOTHING(shunt_info, (unsigned subsys, const char *fmt, ...))
NOTHING(shunt_log_hold, (void))
NOTHING(shunt_log_flush, (void))
