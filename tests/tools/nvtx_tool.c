/* SPDX-License-Identifier: MIT */
/*
 * A tool as NVTX loads one (NVTX_INJECTION64_PATH): a line in the file NVTX_TOOL_OUT for each range that begins or ends
 * in a domain.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <nvtx3/nvToolsExt.h>

static int out = -1;

__attribute__((format(printf, 1, 2))) static void line(const char *fmt, ...)
{
	char text[128];
	va_list ap;
	int n;

	va_start(ap, fmt);
	n = vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	if (write(out, text, (size_t)n) != n) /* at once, so that lines of several ranks do not mix */
		abort();
}

/* Domains and strings are their texts. */
static nvtxDomainHandle_t domain_create(const char *name)
{
	return (nvtxDomainHandle_t)strdup(name);
}

static nvtxStringHandle_t register_string(nvtxDomainHandle_t domain, const char *text)
{
	return (nvtxStringHandle_t)strdup(text);
}

static int push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *e)
{
	if (e->version != NVTX_VERSION || e->messageType != NVTX_MESSAGE_TYPE_REGISTERED ||
	    e->payloadType != NVTX_PAYLOAD_TYPE_UNSIGNED_INT64)
		abort();
	line("begin %s %s %llu\n", (const char *)domain, (const char *)e->message.registered,
	    (unsigned long long)e->payload.ullValue);
	return 0;
}

static int pop(nvtxDomainHandle_t domain)
{
	line("end %s\n", (const char *)domain);
	return 0;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
	const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
	NvtxFunctionTable table;
	unsigned size;

	out = open(getenv("NVTX_TOOL_OUT"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	if (out < 0 || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
	    size < NVTX_CBID_CORE2_SIZE)
		return 0;
	*table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)domain_create;
	*table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
	*table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
	*table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
	return 1;
}
