// Package tollgateheaders says to Tollgate who calls: Traefik's own middlewares can neither rename a header nor
// put the client's address into one.
package tollgateheaders

import (
	"context"
	"net"
	"net/http"
	"strings"
)

// Config has nothing to say.
type Config struct{}

// CreateConfig is called by Traefik.
func CreateConfig() *Config { return &Config{} }

// Tollgate believes headers that begin so: none of a client's may reach it.
var believed = []string{"x-tollgate-", "x-original-"}

type middleware struct{ next http.Handler }

// New is called by Traefik.
func New(_ context.Context, next http.Handler, _ *Config, _ string) (http.Handler, error) {
	return &middleware{next: next}, nil
}

func (m *middleware) ServeHTTP(answer http.ResponseWriter, request *http.Request) {
	for name := range request.Header {
		for _, prefix := range believed {
			if strings.HasPrefix(strings.ToLower(name), prefix) {
				request.Header.Del(name)
			}
		}
	}
	if address, _, err := net.SplitHostPort(request.RemoteAddr); err == nil {
		request.Header.Set("X-Tollgate-Ip", address)
	}
	if key := request.Header.Get("X-Api-Key"); key != "" {
		request.Header.Set("X-Tollgate-Api-Key", key)
	}
	m.next.ServeHTTP(answer, request)
}
