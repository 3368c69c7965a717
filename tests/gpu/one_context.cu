/* SPDX-License-Identifier: MIT */
/*
 * Why threads that share a GPU have one communicator at a time (src/comm/core/shared_gpu.h), without Shunt.
 *
 *     nvcc -o one_context one_context.cu && ./one_context full|free [apart]
 *
 * Kernels in streams of their own wait for each other. full: of eight pairs the first halves fill the GPU, and the
 * second ones, which they wait for, find no multiprocessor. free: a thread frees page-locked memory, which waits for
 * the first half with a lock that the launch of the second one needs. apart: the second halves are another process's;
 * the driver gives processes the GPU in turns, and all ends. Prints "ended" or "stopped" and exits with 0 or 1.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 8, THREADS = 1024, LIMIT_S = 5, STOPPED = 2 * PAIRS };

/* Adds its blocks to *mine, and waits until all blocks of its partner have begun; *stopped: waited too long. */
__global__ void half(unsigned *mine, volatile unsigned *partner, unsigned blocks, unsigned *stopped)
{
	unsigned long long begun, now = 0;

	if (threadIdx.x)
		return;
	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
	atomicAdd_system(mine, 1u);
	while (*partner < blocks && now < begun + LIMIT_S * 1000000000ull)
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	if (*partner < blocks)
		atomicAdd_system(stopped, 1u);
}

static void check(cudaError_t err, const char *what)
{
	if (err != cudaSuccess) {
		fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(err));
		exit(2);
	}
}

static void launch(unsigned *words, unsigned pair, unsigned second, unsigned blocks, int bytes)
{
	cudaStream_t stream;

	check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
	half<<<blocks, THREADS, bytes, stream>>>(
	    words + 2 * pair + second, words + 2 * pair + 1 - second, blocks, words + STOPPED);
	check(cudaGetLastError(), "launch");
}

static void *free_memory(void *memory)
{
	return cudaFreeHost(memory) ? memory : NULL;
}

/* halves: 1 the first ones, 2 the second ones, 3 both. True: one gave up. */
static bool run(unsigned *host, unsigned halves, bool full)
{
	int sms, bytes; /* a block with all shared memory has its multiprocessor alone */
	unsigned *words, pairs = full ? PAIRS : 1, blocks;
	void *memory;
	pthread_t thread;

	check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "multiprocessors");
	check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "shared memory");
	check(cudaFuncSetAttribute(half, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes), "cudaFuncSetAttribute");
	check(cudaHostRegister(host, 4096, cudaHostRegisterMapped), "cudaHostRegister");
	check(cudaHostGetDevicePointer(&words, host, 0), "cudaHostGetDevicePointer");
	check(cudaHostAlloc(&memory, 4096, cudaHostAllocDefault), "cudaHostAlloc");
	blocks = full ? (unsigned)sms / PAIRS + 1 : 1;
	for (unsigned p = 0; p < pairs && (halves & 1); p++)
		launch(words, p, 0, blocks, bytes);
	if (!full && (halves & 1)) {
		pthread_create(&thread, NULL, free_memory, memory);
		sleep(1); /* the thread is in the call by then, and does not come back while a kernel runs */
	}
	for (unsigned p = 0; p < pairs && (halves & 2); p++)
		launch(words, p, 1, blocks, bytes);
	check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	return host[STOPPED] != 0;
}

int main(int argc, char **argv)
{
	bool full = argc > 1 && !strcmp(argv[1], "full"), apart = argc > 2 && !strcmp(argv[2], "apart"), stopped;
	unsigned *words = (unsigned *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t other = apart ? fork() : -1;

	if (other == 0)
		_exit(run(words, 2, full));
	stopped = run(words, apart ? 1 : 3, full);
	if (apart)
		waitpid(other, NULL, 0);
	puts(stopped ? "stopped" : "ended");
	return stopped;
}
