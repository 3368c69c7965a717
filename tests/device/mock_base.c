/* SPDX-License-Identifier: MIT */
#include "tests/device/mock_base.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"

char mock_log_text[512];
int mock_log_count;
struct shunt_config mock_config;

const struct shunt_config *shunt_config(void)
{
	return &mock_config;
}

static void record_log(const char *fmt, va_list ap)
{
	vsnprintf(mock_log_text, sizeof(mock_log_text), fmt, ap);
	mock_log_count++;
}

void shunt_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record_log(fmt, ap);
	va_end(ap);
}

void shunt_warn(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	record_log(fmt, ap);
	va_end(ap);
}

void shunt_info(unsigned subsys, const char *fmt, ...)
{
}

void shunt_log_hold(void)
{
}

void shunt_log_flush(void)
{
}
