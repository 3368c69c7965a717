/* SPDX-License-Identifier: MIT */
/*
 * The CUDA device layer on the real driver. Needs a GPU: without one, or without CUDA kernels in the build, the whole
 * test is skipped (exit code 77, with the reason). What needs two GPUs is skipped by name on one.
 */
#include <sys/socket.h>

#include "tests/support/child.h"
#include "tests/support/test.h"
#include "device/gpu_ops.h"
#include "kernels/kernel_list.h"
#include "kernels/set.h"

static const struct shunt_gpu_ops *const ops = &shunt_gpu_cuda_ops;
static int ndevices;
static char **args;

static void need_devices(int n)
{
	if (ndevices < n) {
		print_message("skipped: needs %d GPUs, there are %d\n", n, ndevices);
		skip();
	}
}

TEST(test_gpu_device_info_is_sane)
{
	for (int d = 0; d < ndevices; d++) {
		struct shunt_gpu_info info;

		assert_int_equal(ops->device_info(d, &info), 0);
		print_message("device %d: %s, sm_%d, %u multiprocessors\n", d, info.name, info.cc, info.sms);
		assert_in_range(info.cc, 70, 200);
		assert_in_range(info.sms, 1, 1000);
		assert_int_equal(info.sim, 0);
	}
}

/* No NIC is asked: that the driver gives a descriptor is all that one machine can show. */
TEST(test_gpu_memory_has_a_dmabuf)
{
	void *at;
	int fd = -1, err;

	assert_int_equal(ops->mem_alloc_shared(0, 1 << 20, &at), 0);
	err = ops->mem_dmabuf(0, at, 1 << 20, &fd);
	assert_int_equal(ops->mem_free(at), 0);
	if (err == -EOPNOTSUPP) {
		print_message("skipped: this device or driver has no dma-buf\n");
		skip();
	}
	assert_int_equal(err, 0);
	assert_true(fd >= 0);
	close(fd);
}

TEST(test_gpu_kernels_load_every_kernel_on_every_device)
{
	for (int d = 0; d < ndevices; d++) {
		struct timespec a, b;
		size_t before, after, total;

		assert_int_equal(ops->mem_info(d, &before, &total), 0);
		clock_gettime(CLOCK_MONOTONIC, &a);
		assert_int_equal(ops->kernels_load(d), 0);
		clock_gettime(CLOCK_MONOTONIC, &b);
		assert_int_equal(ops->mem_info(d, &after, &total), 0);
		print_message("device %d: kernels loaded in %.1f ms, %.1f MiB\n", d,
		    (b.tv_sec - a.tv_sec) * 1e3 + (b.tv_nsec - a.tv_nsec) * 1e-6,
		    ((double)before - (double)after) / (1 << 20));
		assert_int_equal(ops->kernels_load(d), 0);
	}
}

TEST(test_gpu_share_alloc_is_zeroed_and_freed)
{
	size_t before, after, total, bytes = 8 << 20;
	char *host = calloc(1, bytes);
	void *p;

	/* What is made once and kept is not to be counted. */
	assert_int_equal(ops->mem_alloc(0, 1, &p), 0);
	assert_int_equal(ops->copy(0, p, host, 1), 0);
	assert_int_equal(ops->mem_free(p), 0);
	assert_int_equal(ops->mem_info(0, &before, &total), 0);
	for (int round = 0; round < 20; round++) {
		struct shunt_gpu_mem mem;

		assert_int_equal(ops->share_alloc(0, bytes, &mem), 0);
		assert_true(mem.bytes >= bytes);
		memset(host, 1, bytes);
		assert_int_equal(ops->copy(0, host, mem.ptr, bytes), 0);
		for (size_t i = 0; i < bytes; i++)
			if (host[i])
				fail_msg("byte %zu is not zero", i);
		memset(host, 2, bytes);
		assert_int_equal(ops->copy(0, mem.ptr, host, bytes), 0);
		ops->share_free(&mem);
	}
	assert_int_equal(ops->mem_info(0, &after, &total), 0);
	assert_true(after + bytes >= before);
	free(host);
}

/* The part of the next test that runs in a process of its own: sees the exporter's bytes, writes its own. */
static int map_elsewhere(int sock, size_t bytes)
{
	char control[CMSG_SPACE(sizeof(int))], byte, word[8];
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct shunt_gpu_mem mem;
	int fd, n;

	if (recvmsg(sock, &msg, 0) != 1 || !CMSG_FIRSTHDR(&msg))
		return 1;
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&msg)), sizeof(fd));
	if (ops->open(&shunt_kernels) || ops->device_count(&n))
		return 2;
	if (ops->share_map(n - 1, fd, bytes, &mem))
		return 3;
	close(fd);
	if (ops->copy(n - 1, word, (char *)mem.ptr + 64, 8) || memcmp(word, "exporter", 8))
		return 4;
	if (ops->copy(n - 1, (char *)mem.ptr + bytes - 8, "importer", 8))
		return 5;
	ops->share_free(&mem);
	return 0;
}

TEST(test_gpu_share_map_in_another_process)
{
	char control[CMSG_SPACE(sizeof(int))] = { 0 }, byte = 0, word[8], sock_text[16], bytes_text[24];
	struct iovec iov = { &byte, 1 };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control)
	};
	struct shunt_gpu_mem mem;
	int sv[2], status;
	pid_t pid;

	assert_int_equal(ops->share_alloc(0, 1, &mem), 0);
	assert_int_equal(ops->copy(0, (char *)mem.ptr + 64, "exporter", 8), 0);
	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, sv), 0);
	snprintf(sock_text, sizeof(sock_text), "%d", sv[1]);
	snprintf(bytes_text, sizeof(bytes_text), "%zu", mem.bytes);
	/* A new program, because CUDA does not survive a fork. */
	pid = child_fork();
	if (!pid) {
		execl("/proc/self/exe", args[0], "map", sock_text, bytes_text, (char *)NULL);
		_exit(99);
	}
	CMSG_FIRSTHDR(&msg)->cmsg_level = SOL_SOCKET;
	CMSG_FIRSTHDR(&msg)->cmsg_type = SCM_RIGHTS;
	CMSG_FIRSTHDR(&msg)->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(CMSG_FIRSTHDR(&msg)), &mem.fd, sizeof(int));
	assert_int_equal(sendmsg(sv[0], &msg, 0), 1);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_int_equal(ops->copy(0, word, (char *)mem.ptr + mem.bytes - 8, 8), 0);
	assert_memory_equal(word, "importer", 8);
	ops->share_free(&mem);
	close(sv[0]);
	close(sv[1]);
}

TEST(test_gpu_share_borrow_keeps_the_exporters_access)
{
	struct shunt_gpu_mem mine, theirs;
	struct shunt_gpu_info peer;
	const char *reason = "";
	void *stream;
	char word[8];

	need_devices(2);
	assert_int_equal(ops->device_info(1, &peer), 0);
	print_message(
	    "devices 0 and 1: %s\n", ops->peer_check(0, &peer, &reason) != SHUNT_LINK_NVLINK ? reason : "NVLink");
	assert_int_equal(ops->share_alloc(0, 1, &mine), 0);
	assert_int_equal(ops->share_borrow(1, mine.ptr, mine.bytes, &theirs), 0);
	assert_int_equal(ops->stream_create(1, &stream), 0);
	assert_int_equal(ops->memset_async(1, theirs.ptr, 'p', 8, stream), 0);
	assert_int_equal(ops->stream_sync(1, stream), 0);
	ops->stream_destroy(1, stream);
	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->memset_async(0, (char *)mine.ptr + 4, 'e', 4, stream), 0);
	assert_int_equal(ops->stream_sync(0, stream), 0);
	ops->stream_destroy(0, stream);
	assert_int_equal(ops->copy(0, word, mine.ptr, 8), 0);
	assert_memory_equal(word, "ppppeeee", 8);
	ops->share_free(&theirs);
	ops->share_free(&mine);
}

TEST(test_gpu_peer_check_takes_the_same_device)
{
	struct shunt_gpu_info peer;
	const char *reason = NULL;

	assert_int_equal(ops->device_info(0, &peer), 0);
	/* Whether ranks may share a device is not the device layer's to say. */
	assert_int_equal(ops->peer_check(0, &peer, &reason), 0);
}

TEST(test_gpu_copy_works_while_the_thread_captures)
{
	void *stream, *graph, *p, *host, *dev;
	enum shunt_capture cap;
	uint64_t a = 0x1122334455667788, b = 0;

	assert_int_equal(ops->mem_alloc(0, 4096, &p), 0);
	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->capture_begin(0, stream), 0);
	assert_int_equal(ops->stream_capture(0, stream, &cap), 0);
	assert_int_equal(cap, SHUNT_CAPTURE_ACTIVE);
	assert_int_equal(ops->memset_async(0, p, 7, 16, stream), 0);
	assert_int_equal(ops->copy(0, p, &a, sizeof(a)), 0);
	assert_int_equal(ops->host_alloc(4096, &host, &dev), 0);
	assert_int_equal(ops->capture_end(0, stream, &graph), 0);
	assert_int_equal(ops->copy(0, &b, p, sizeof(b)), 0);
	assert_true(a == b);
	for (int i = 0; i < 3; i++)
		assert_int_equal(ops->graph_launch(0, graph, stream), 0);
	assert_int_equal(ops->stream_sync(0, stream), 0);
	assert_int_equal(ops->copy(0, &b, p, sizeof(b)), 0);
	assert_true(b == 0x0707070707070707);
	/* Kernels reach page-locked host memory at its device address. */
	assert_int_equal(ops->memset_async(0, dev, 9, 8, stream), 0);
	assert_int_equal(ops->stream_sync(0, stream), 0);
	assert_int_equal(((unsigned char *)host)[7], 9);
	assert_int_equal(((unsigned char *)host)[8], 0);
	ops->host_free(host);
	ops->graph_destroy(0, graph);
	ops->stream_destroy(0, stream);
	assert_int_equal(ops->mem_free(p), 0);
}

TEST(test_gpu_event_elapsed_grows_with_the_work)
{
	void *stream, *a, *b, *p;
	float us = 0;

	assert_int_equal(ops->mem_alloc(0, 256 << 20, &p), 0);
	assert_int_equal(ops->stream_create(0, &stream), 0);
	assert_int_equal(ops->event_create(0, true, &a), 0);
	assert_int_equal(ops->event_create(0, true, &b), 0);
	assert_int_equal(ops->event_record(0, a, stream), 0);
	for (int i = 0; i < 10; i++)
		assert_int_equal(ops->memset_async(0, p, i, 256 << 20, stream), 0);
	assert_int_equal(ops->event_record(0, b, stream), 0);
	assert_int_equal(ops->stream_sync(0, stream), 0);
	assert_int_equal(ops->event_elapsed_us(0, a, b, &us), 0);
	assert_true(us > 10);
	ops->event_destroy(0, a);
	ops->event_destroy(0, b);
	ops->stream_destroy(0, stream);
	assert_int_equal(ops->mem_free(p), 0);
}

static void *other_thread(void *arg)
{
	int device = -1;

	if (ops->device_get(&device))
		return (void *)1;
	return (void *)(intptr_t)(device != 0);
}

TEST(test_gpu_current_device_is_per_thread)
{
	pthread_t t;
	void *bad;
	int device = -1;

	assert_int_equal(ops->device_set(ndevices - 1), 0);
	assert_int_equal(ops->device_get(&device), 0);
	assert_int_equal(device, ndevices - 1);
	pthread_create(&t, NULL, other_thread, NULL);
	pthread_join(t, &bad);
	assert_null(bad);
	assert_int_equal(ops->device_set(0), 0);
}

int main(int argc, char **argv)
{
	args = argv;
	if (argc == 4 && !strcmp(argv[1], "map"))
		return map_elsewhere(atoi(argv[2]), strtoull(argv[3], NULL, 10));
	if (ops->open(&shunt_kernels) || ops->device_count(&ndevices) || ndevices < 1) {
		printf("skipped: test_gpu needs a GPU and a build with CUDA kernels\n");
		return 77;
	}
	return tests_run(NULL, NULL);
}
