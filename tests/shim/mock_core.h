/* SPDX-License-Identifier: MIT */
#pragma once
/*
 * What stands under the shim in its tests: a core without devices and sockets that writes down what is asked of it.
 * Calls of up to 1000 elements on two ranks or more take the path "mock". The ranks of one process meet in bootstrap
 * groups and in set-up.
 */
#pragma GCC visibility push(default)
/*
 * What the shim did since the last reset, one line each: "create 0/2 rank 0/2", "run 5", "setup", "forward broadcast
 * kind", ...
 */
const char *shunt_mock_log(void);
void shunt_mock_reset(void);
/* The outcome of every set-up from now on: 0; 1: forward-only; negative errno. */
void shunt_mock_setup_result(int result);
/* What shunt_comm_error says from now on. */
void shunt_mock_error(int err);
/* From now on a kernel runs on every communicator, until 0 or an abort. */
void shunt_mock_kernel_runs(int runs);
/* The host that we are on from now on: 1 at first. */
void shunt_mock_host(int number);
/* Ranks that wait in a rendezvous just now. */
int shunt_mock_waiting(void);
/* Communicators that were created and not yet destroyed. */
int shunt_mock_alive(void);
int shunt_mock_teardown(void **state); /* of tests: fails if one is left */
#pragma GCC visibility pop
