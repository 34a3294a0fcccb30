// The part of Cilium's agent that keeps its CNI conf file, with the agent's own flags.
package main

import (
	"github.com/cilium/cilium/daemon/cmd/cni"
	"github.com/cilium/cilium/pkg/hive"
	"github.com/cilium/cilium/pkg/option"
	"github.com/cilium/hive/cell"
	"github.com/spf13/pflag"
	"log/slog"
	"os"
)

func main() {
	h := hive.New(
		cell.Provide(func() *option.DaemonConfig { return &option.DaemonConfig{} }),
		cni.Cell,
		cell.Invoke(func(cni.CNIConfigManager) {}),
	)
	h.RegisterFlags(pflag.CommandLine)
	pflag.Parse()
	if err := h.Run(slog.New(slog.NewTextHandler(os.Stderr, nil))); err != nil {
		slog.Error("ended", "error", err)
		os.Exit(1)
	}
}
