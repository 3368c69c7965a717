/* SPDX-License-Identifier: MIT */
#pragma once
/* What the files of test_net share: the provider, random bytes, a pair of ends with memory; and all tests by file. */
#include "tests/transport/net_ends.h"

#define MIB ((size_t)1 << 20)

extern const struct shunt_net_ops *ops; /* the provider that is tested */

uint32_t below(uint32_t n);
void fill(uint8_t *bytes, size_t n);

/* Memory of both ends of a pair: end 0 puts from `from` to `to`, which is at end 1. */
struct lane {
	struct net_pair pair;
	uint8_t *from, *to;
	size_t bytes;
	struct shunt_net_memory *source, *target;
};

void lane_open(struct lane *lane, size_t bytes);
void lane_close(struct lane *lane);
struct shunt_net_put lane_put(const struct lane *lane, size_t from, size_t to, uint32_t bytes, uint16_t count);
void expect_invalid(struct lane *lane, struct shunt_net_put bad);

/* net_puts.c */
void test_bytes_arrive_at_any_size_and_offset(void **state);
void test_a_signal_comes_after_all_earlier_puts(void **state);
void test_devices_work_in_threads_of_their_own(void **state);
void test_many_endpoints_of_one_device(void **state);
void test_packets_appear_8_bytes_at_once(void **state);
void test_post_has_an_end_and_room_again(void **state);
void test_more_is_sent_when_no_more_comes(void **state);
void test_a_signal_alone_and_a_put_of_nothing(void **state);
void test_post_refuses_what_is_out_of_bounds(void **state);
void test_post_needs_a_connection(void **state);

/* net_words.c */
void test_additions_are_refused_where_they_were_not_agreed_on(void **state);
void test_a_word_has_64_bits(void **state);
void test_additions_out_of_bounds(void **state);
void test_many_endpoints_add_to_one_word(void **state);
void test_a_put_out_of_bounds_kills_the_endpoint(void **state);
void test_a_large_put_out_of_bounds_kills_the_endpoint(void **state);

/* net_life.c */
void test_finish_loses_nothing(void **state);
void test_close_leaves_sources_alone(void **state);
void test_closing_the_target_kills_the_sender(void **state);
void test_another_key_is_refused(void **state);
void test_a_blob_of_nobody_is_refused(void **state);
void test_a_peer_that_does_not_connect_is_given_up(void **state);
void test_one_side_may_connect_later(void **state);
void test_two_processes(void **state);
void test_a_killed_peer_is_told_at_once(void **state);
void test_what_is_closed_is_watched_no_more_though_a_child_has_copies(void **state);
void test_an_idle_device_sleeps(void **state);
void test_no_wakeup_is_lost(void **state);
