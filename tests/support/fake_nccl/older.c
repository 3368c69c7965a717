/* SPDX-License-Identifier: MIT */
/* The same library as of a version that cannot revoke or shrink communicators. */
#define VERSION 22605
#define ncclCommRevoke fake_nccl_no_revoke
#define ncclCommShrink fake_nccl_no_shrink
#include "tests/support/fake_nccl/fake_nccl.c" /* NOLINT(bugprone-suspicious-include): all of it but these two */
