#!/usr/bin/env bash
# Ends with 0 if the service on this machine answers /healthz with 200 within 3 s. Needs bash and nothing else.
#   healthcheck.sh [PORT]
set -euo pipefail
port=${1:-7800}
ask() {
  exec 3<>"/dev/tcp/127.0.0.1/$port"
  printf 'GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n' >&3
  IFS= read -r status <&3
  [[ $status == "HTTP/1.1 200 "* ]]
}
export -f ask
export port
timeout 3 bash -c ask 2>/dev/null
