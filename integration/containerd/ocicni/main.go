// Runs ocicni, the library with which CRI-O chooses a conf file and calls CNI plugins, with CRI-O's arguments.
//
// ocicni CONF_DIR PLUGIN_DIR [NETWORK]: NETWORK is cni_default_network of CRI-O's configuration. Reads a request from
// each line of the standard input, and writes a reply to a line of the standard output. ocicni's log is on the standard
// error.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/cri-o/ocicni/pkg/ocicni"
)

type pod struct {
	ocicni.PodNetwork
	CgroupPath string
	// Nil for a version of CRI-O that does not pass them.
	Annotations *map[string]string
}

type request struct {
	// SetUpPod, GetPodNetworkStatus, TearDownPod: the pod. GC: the pods that exist. Status: none.
	Call string
	Pods []pod
}

type reply struct {
	// The default network.
	Network string         `json:"network"`
	Results []types.Result `json:"results,omitempty"`
	Error   string         `json:"error,omitempty"`
}

func main() {
	if err := serve(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(arguments []string) error {
	network := ""
	switch len(arguments) {
	case 2:
	case 3:
		network = arguments[2]
	default:
		return errors.New("usage: ocicni CONF_DIR PLUGIN_DIR [NETWORK]")
	}
	cni, err := ocicni.InitCNI(network, arguments[0], arguments[1])
	if err != nil {
		return err
	}
	requests, replies := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var request request
		if err := requests.Decode(&request); errors.Is(err, io.EOF) {
			return cni.Shutdown()
		} else if err != nil {
			return err
		}
		results, err := call(cni, request)
		reply := reply{Network: cni.GetDefaultNetworkName()}
		if err != nil {
			reply.Error = err.Error()
		}
		for _, result := range results {
			reply.Results = append(reply.Results, result.Result)
		}
		if err := replies.Encode(reply); err != nil {
			return err
		}
	}
}

func call(cni ocicni.CNIPlugin, request request) ([]ocicni.NetResult, error) {
	networks := make([]*ocicni.PodNetwork, 0, len(request.Pods))
	for _, pod := range request.Pods {
		pod.RuntimeConfig = map[string]ocicni.RuntimeConfig{
			cni.GetDefaultNetworkName(): {CgroupPath: pod.CgroupPath, PodAnnotations: pod.Annotations},
		}
		networks = append(networks, &pod.PodNetwork)
	}
	switch request.Call {
	case "Status":
		return nil, cni.Status()
	case "GC":
		return nil, cni.GC(context.Background(), networks)
	}
	if len(networks) != 1 {
		return nil, fmt.Errorf("%s needs one pod, not %d", request.Call, len(networks))
	}
	switch request.Call {
	case "SetUpPod":
		return cni.SetUpPod(*networks[0])
	case "GetPodNetworkStatus":
		return cni.GetPodNetworkStatus(*networks[0])
	case "TearDownPod":
		return nil, cni.TearDownPod(*networks[0])
	}
	return nil, fmt.Errorf("unknown call %q", request.Call)
}
