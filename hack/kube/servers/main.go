// Every server of a control plane in one program, so that what they share is compiled and linked once.
// The name that it is started by says which one runs; a build holds those whose files it is given.
package main

import (
	"fmt"
	"os"
	"path/filepath"
)

var servers = map[string]func() int{}

func main() {
	name := filepath.Base(os.Args[0])
	run, found := servers[name]
	if !found {
		fmt.Fprintf(os.Stderr, "this program holds no %s\n", name)
		os.Exit(2)
	}
	os.Exit(run())
}
