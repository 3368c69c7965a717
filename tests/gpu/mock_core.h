/* SPDX-License-Identifier: MIT */
#ifndef SHUNT_TESTS_GPU_MOCK_CORE_H
#define SHUNT_TESTS_GPU_MOCK_CORE_H
/* core/log.h and core/config.h for tests of the device layer alone: log lines are kept, not printed. */
#include "core/config.h"

extern char mock_log_text[512]; /* the last error or warning */
extern int mock_log_count;      /* errors and warnings so far */
extern struct shunt_config mock_config;
#endif
