# SPDX-License-Identifier: Apache-2.0
# The house kept in order: checks, formatting, installation.
