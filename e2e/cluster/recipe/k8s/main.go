// The programs of Kubernetes that a cluster needs, in one file: it does what the name says by which it is run.
// Compiled and linked once, it takes less time and less disk than a file for each of them.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	_ "time/tzdata" // for time zones of CronJobs

	_ "k8s.io/client-go/plugin/pkg/client/auth" // for kubectl's ways to log in
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	_ "k8s.io/component-base/logs/json/register"          // for logs as JSON
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // for metrics of clients
	_ "k8s.io/component-base/metrics/prometheus/version"  // for the metric of the version
	kubectl "k8s.io/kubectl/pkg/cmd"
	kubectlutil "k8s.io/kubectl/pkg/cmd/util"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	manager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubeadm "k8s.io/kubernetes/cmd/kubeadm/app"
	kubeadmerrors "k8s.io/kubernetes/cmd/kubeadm/app/util/errors"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"

	"kubernetes/kindnetd"
)

// Each does what `main` of the program does upstream; the functions without a result end the process on a failure.
var programs = map[string]func() int{
	"kube-apiserver":          func() int { return cli.Run(apiserver.NewAPIServerCommand()) },
	"kube-controller-manager": func() int { return cli.Run(manager.NewControllerManagerCommand()) },
	"kube-proxy":              func() int { return cli.Run(proxy.NewProxyCommand()) },
	"kube-scheduler":          func() int { return cli.Run(scheduler.NewSchedulerCommand()) },
	"kubelet":                 func() int { return cli.Run(kubelet.NewKubeletCommand(context.Background())) },
	"kubeadm":                 func() int { kubeadmerrors.HandleError(kubeadm.Run()); return 0 },
	"kubectl":                 runKubectl,
	"kindnetd":                func() int { kindnetd.Run(); return 0 },
}

func runKubectl() int {
	logs.GlogSetter(kubectl.GetLogVerbosity(os.Args)) // before the first use of a client
	if err := cli.RunNoErrOutput(kubectl.NewDefaultKubectlCommand()); err != nil {
		kubectlutil.CheckErr(err)
	}
	return 0
}

func main() {
	name := filepath.Base(os.Args[0])
	run, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "%s is the name of none of the programs of this file; run it by a link with one.\n", name)
		os.Exit(2)
	}
	os.Exit(run())
}
