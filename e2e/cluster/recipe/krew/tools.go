//go:build tools

// Package tools pins krew.
package tools

import (
	_ "sigs.k8s.io/krew/cmd/krew"
)
