/* SPDX-License-Identifier: MIT */
/* A cuBLAS whose multiplications take a while and multiply nothing: 20 us each, on the host. */
#include <stdlib.h>
#include <time.h>

#define EXPORT __attribute__((visibility("default")))

int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cublasSetStream_v2(void *handle, void *stream);
int cublasGemmEx(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a,
    int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
    int compute, int algo);

EXPORT int cublasCreate_v2(void **handle)
{
	*handle = malloc(1);
	return *handle ? 0 : 3;
}

EXPORT int cublasDestroy_v2(void *handle)
{
	free(handle);
	return 0;
}

EXPORT int cublasSetStream_v2(void *handle, void *stream)
{
	(void)handle;
	return stream ? 0 : 7;
}

EXPORT int cublasGemmEx(void *handle, int trans_a, int trans_b, int m, int n, int k, const void *alpha, const void *a,
    int a_type, int lda, const void *b, int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
    int compute, int algo)
{
	struct timespec start, now;

	if (!handle || trans_a || trans_b || m != n || n != k || lda != m || ldb != m || ldc != m || a_type != 14 ||
	    b_type != 14 || c_type != 14 || compute != 68 || algo != -1 || *(const float *)alpha != 1 ||
	    *(const float *)beta != 0 || !a || !b || !c)
		return 7;
	clock_gettime(CLOCK_MONOTONIC, &start);
	do
		clock_gettime(CLOCK_MONOTONIC, &now);
	while ((now.tv_sec - start.tv_sec) * 1000000000L + now.tv_nsec - start.tv_nsec < 20000);
	return 0;
}
