package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/portforward"
)

const (
	idle    = 4 * time.Hour    // as a kubelet's
	opening = 30 * time.Second // within which a client opens both streams of a connection
)

func init() {
	servers["node-endpoint"] = func() int {
		if err := serveNode(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
}

// serveNode is the kubelet's HTTPS endpoint. It forwards ports itself, as kubectl speaks SPDY there. All else goes to the agent.
func serveNode() error {
	listener := flag.Uint("listener", 0, "file descriptor of the socket that listens")
	certificate := flag.String("certificate", "", "served to the API server")
	key := flag.String("key", "", "of the certificate")
	ca := flag.String("ca", "", "certificates that have signed a client's: the API server's")
	agent := flag.String("agent", "", "Unix socket of the node agent")
	flag.Parse()

	accepting, err := net.FileListener(os.NewFile(uintptr(*listener), "listener"))
	if err != nil {
		return err
	}
	signers, err := os.ReadFile(*ca)
	if err != nil {
		return err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(signers)
	server := &http.Server{
		Handler:           endpoint(*agent),
		ReadHeaderTimeout: opening,
		TLSConfig:         &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients},
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){}, // HTTP/2 has no upgrades
	}
	return server.ServeTLS(accepting, *certificate, *key)
}

func endpoint(agent string) http.Handler {
	toAgent := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", agent)
	}}
	host := &url.URL{Scheme: "http", Host: "agent"}
	mux := http.NewServeMux()
	mux.Handle("/", &httputil.ReverseProxy{
		Transport:     toAgent,
		FlushInterval: -1, // logs that are followed
		Rewrite:       func(request *httputil.ProxyRequest) { request.SetURL(host) },
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(writer http.ResponseWriter, request *http.Request) {
		address, err := addressOf(toAgent, host.JoinPath("address", request.PathValue("namespace"), request.PathValue("pod")))
		if err != nil {
			http.Error(writer, err.Error(), http.StatusNotFound)
			return
		}
		name, options := request.PathValue("pod"), &portforward.V4Options{}
		portforward.ServePortForward(writer, request, address, name, "", options, idle, opening, portforward.SupportedProtocols)
	})
	return mux
}

func addressOf(transport http.RoundTripper, from *url.URL) (podAddress, error) {
	client := http.Client{Transport: transport, Timeout: opening}
	response, err := client.Get(from.String())
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s", text)
	}
	return podAddress(text), err
}

// podAddress is where a pod's servers listen. Pods share this machine's loopback, so it is never 127.0.0.1.
type podAddress string

func (address podAddress) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer stream.Close()
	dialled, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(string(address), strconv.Itoa(int(port))))
	if err != nil {
		return err
	}
	connection := dialled.(*net.TCPConn)
	defer connection.Close()
	go func() {
		_, _ = io.Copy(connection, stream)
		_ = connection.CloseWrite()
	}()
	_, err = io.Copy(stream, connection)
	return err
}
