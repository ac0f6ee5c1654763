// Command buildx is Docker's own without the drivers that start builders: it reads bake files and prints what they
// say. The drivers would bring Kubernetes' client, and compile for twice as long.
package main

import (
	"fmt"
	"os"

	"github.com/docker/buildx/commands"
	"github.com/docker/cli/cli/command"
)

func main() {
	docker, err := command.NewDockerCli()
	if err == nil {
		err = commands.NewRootCmd("buildx", false, docker).Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
