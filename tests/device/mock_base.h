/* SPDX-License-Identifier: MIT */
#pragma once
/* base/log.h and base/config.h for tests of the device layer alone: log lines are kept, not printed. */
#include "base/config.h"

extern char mock_log_text[512]; /* the last error or warning */
extern int mock_log_count;      /* errors and warnings so far */
extern struct shunt_config mock_config;
