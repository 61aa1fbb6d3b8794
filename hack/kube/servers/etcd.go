package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func init() {
	servers["etcd"] = func() int {
		etcdmain.Main(os.Args)
		return 0
	}
}
