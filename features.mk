# SPDX-License-Identifier: Apache-2.0
# What this machine offers. Each HAVE_X is 0 or 1, may be given on the command line, and is recorded
# in build/<variant>/include/config.h. A part that is missing is left out of the build, said once by
# `make features`, and answers with exit 7 at run time.

FEATURES := MPI DNNL ZSTD

# $(call probe,header,call,libraries,flags): does a program that calls it compile and link?
probe = $(shell printf '%s\n' '$(H)include <$(1)>' 'int main(void) { (void)$(2); return 0; }' | \
          $(CC) $(4) -x c - -o /dev/null $(3) >/dev/null 2>&1 && echo 1 || echo 0)
H := \#

MPI_CFLAGS ?= $(shell pkg-config --cflags ompi-c 2>/dev/null || pkg-config --cflags mpi-c 2>/dev/null)
MPI_LDLIBS ?= $(shell pkg-config --libs ompi-c 2>/dev/null || pkg-config --libs mpi-c 2>/dev/null || echo -lmpi)
ifeq ($(origin HAVE_MPI),undefined)
HAVE_MPI := $(call probe,mpi.h,MPI_Finalize(),$(MPI_LDLIBS),$(MPI_CFLAGS))
endif
DNNL_LDLIBS ?= -ldnnl
ifeq ($(origin HAVE_DNNL),undefined)
HAVE_DNNL := $(call probe,dnnl.h,dnnl_version(),$(DNNL_LDLIBS),$(DNNL_CFLAGS))
endif

ZSTD_LDLIBS ?= -lzstd
ifeq ($(origin HAVE_ZSTD),undefined)
HAVE_ZSTD := $(call probe,zstd.h,ZSTD_versionNumber(),$(ZSTD_LDLIBS),)
endif

FEATURE_CFLAGS := $(if $(filter 1,$(HAVE_MPI)),$(MPI_CFLAGS)) $(if $(filter 1,$(HAVE_DNNL)),$(DNNL_CFLAGS))
FEATURE_LDLIBS := -lcjson -lxxhash $(if $(filter 1,$(HAVE_MPI)),$(MPI_LDLIBS)) $(if $(filter 1,$(HAVE_DNNL)),$(DNNL_LDLIBS)) \
                  $(if $(filter 1,$(HAVE_ZSTD)),$(ZSTD_LDLIBS))
FEATURE_SKIP := $(if $(filter 1,$(HAVE_MPI)),,$(wildcard lib/comm/mpi*.c)) $(if $(filter 1,$(HAVE_DNNL)),,lib/ops/dnnl.c)

features:
	@$(foreach f,$(FEATURES),printf '%-6s %s\n' '$(f)' '$(if $(filter 1,$(HAVE_$(f))),yes,no: left out)';)
.PHONY: features
