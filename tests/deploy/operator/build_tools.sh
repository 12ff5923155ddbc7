#!/bin/sh
# Builds actionlint, helm, helm-unittest, etcd, kube-apiserver and kubectl with Go, once, into the folder given as $1 (by
# default $XDG_CACHE_HOME/kafka-quota-proxy-tools, or .cache/tools), makes the definitions of the Prometheus operator's
# objects from its types, as its releases do, and takes those of the Gateway API and cert-manager from their modules. About
# 15 minutes on two cores; what is there of the same version is kept.
set -eu
ACTIONLINT=v1.7.12 HELM=v3.22.0 UNITTEST=v1.1.2 ETCD=v3.6.8 KUBERNETES=1.36.3 GENERATOR=v0.23.0 OPERATOR=v0.95.1
GATEWAY=v1.5.1 CERT_MANAGER=v1.20.0
if [ -n "${XDG_CACHE_HOME:-}" ]; then default=$XDG_CACHE_HOME/kafka-quota-proxy-tools; else default=$PWD/.cache/tools; fi
target=${1:-$default}
mkdir -p "$target"
target=$(cd "$target" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export CGO_ENABLED=0 GOFLAGS="-mod=mod -buildvcs=false -p=2"

module() { # NAME: an empty module in its own folder, so that its replaces count
    mkdir -p "$work/$1" && cd "$work/$1" && printf 'module build/%s\n\ngo 1.26\n' "$1" >go.mod
}
missing() { # NAME VERSION: whether it has to be made
    [ "$(cat "$target/.version-of-$1" 2>/dev/null)" = "$2" ] && [ -e "$target/$1" ] && return 1
    command -v go >/dev/null || { echo "error: Go 1.26 or newer is needed to build $target/$1" >&2; exit 1; }
}
made() { # NAME VERSION: it is there
    echo "$2" >"$target/.version-of-$1"
}
build() { # BINARY VERSION PACKAGE [LDFLAGS]
    echo "building $1 $2" >&2
    go build -trimpath -ldflags "-s -w ${4:-}" -o "$target/.$1" "$3"
    mv "$target/.$1" "$target/$1"
    made "$1" "$2"
}

if missing actionlint $ACTIONLINT; then
    module actionlint
    go get github.com/rhysd/actionlint/cmd/actionlint@$ACTIONLINT
    build actionlint $ACTIONLINT github.com/rhysd/actionlint/cmd/actionlint
fi
minor=$(echo $KUBERNETES | cut -d . -f 2)
if missing helm "$HELM for $KUBERNETES"; then
    module helm
    go get helm.sh/helm/v3@$HELM && go get helm.sh/helm/v3/cmd/helm@$HELM
    build helm "$HELM for $KUBERNETES" helm.sh/helm/v3/cmd/helm "-X helm.sh/helm/v3/internal/version.version=$HELM \
        -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1 -X helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor=$minor"
fi
if missing helm-unittest $UNITTEST; then
    module unittest
    go mod edit -replace github.com/vmware-labs/yaml-jsonpath=github.com/helm-unittest/yaml-jsonpath@v0.4.0
    go get github.com/helm-unittest/helm-unittest/cmd/helm-unittest@$UNITTEST
    build helm-unittest $UNITTEST github.com/helm-unittest/helm-unittest/cmd/helm-unittest
fi
if missing etcd $ETCD; then
    module etcd
    go get go.etcd.io/etcd/server/v3@$ETCD
    build etcd $ETCD go.etcd.io/etcd/server/v3
fi
if missing kube-apiserver $KUBERNETES || missing kubectl $KUBERNETES; then
    module kubernetes
    go mod edit -require "k8s.io/kubernetes@v$KUBERNETES"
    # Kubernetes' own modules are replaced by folders of its repository: take them as they were published.
    source=$(go mod download -json "k8s.io/kubernetes@v$KUBERNETES" | sed -n 's/.*"GoMod": "\(.*\)",*/\1/p')
    for each in $(sed -n 's|^[[:space:]]*\(k8s.io/[a-z0-9-]*\) => ./staging/.*|\1|p' "$source"); do
        go mod edit -replace "$each=$each@v0.${KUBERNETES#1.}"
    done
    go get "k8s.io/kubernetes/cmd/kube-apiserver@v$KUBERNETES"
    version="-X k8s.io/component-base/version.gitVersion=v$KUBERNETES -X k8s.io/component-base/version.gitMajor=1 \
        -X k8s.io/component-base/version.gitMinor=$minor \
        -X k8s.io/component-base/version.gitCommit=unknown -X k8s.io/component-base/version.buildDate=1970-01-01T00:00:00Z"
    for each in kube-apiserver kubectl; do
        ! missing $each $KUBERNETES || build $each $KUBERNETES k8s.io/kubernetes/cmd/$each "$version"
    done
fi
if missing definitions $OPERATOR; then
    module definitions
    types=github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring
    go mod edit -require "$types@$OPERATOR"
    # Its newest version is not what Kubernetes has.
    source=$(go mod download -json "k8s.io/kubernetes@v$KUBERNETES" | sed -n 's/.*"GoMod": "\(.*\)",*/\1/p')
    go mod edit -replace "k8s.io/utils=k8s.io/utils@$(sed -n 's|^[[:space:]]*k8s.io/utils \(v[^ ]*\).*|\1|p' "$source")"
    printf 'package definitions\n\nimport _ "%s/v1"\n' $types >types.go
    go get sigs.k8s.io/controller-tools/cmd/controller-gen@$GENERATOR
    go run sigs.k8s.io/controller-tools/cmd/controller-gen crd:crdVersions=v1 paths=$types/v1 output:crd:dir=made
    mkdir -p "$work/chosen" && cp made/*_podmonitors.yaml made/*_prometheusrules.yaml "$work/chosen"
    (cd "$work/chosen" && sha256sum --check --quiet) <<END
e1b4b20141d7e006c362094f2e332e151a28fd2feaf7de307dbcf55e725199c8  monitoring.coreos.com_podmonitors.yaml
ce3a773bffca915ab0a9f984edf98ae61a2aee4e93326f7a5712cf74a7959b95  monitoring.coreos.com_prometheusrules.yaml
END
    rm -rf "$target/definitions" && mv "$work/chosen" "$target/definitions"
    made definitions $OPERATOR
fi
if missing published "$GATEWAY $CERT_MANAGER"; then
    module published
    mkdir -p "$work/chosen-published"
    for each in sigs.k8s.io/gateway-api@$GATEWAY=config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml \
        github.com/cert-manager/cert-manager@$CERT_MANAGER=deploy/crds/cert-manager.io_certificates.yaml; do
        folder=$(go mod download -json "${each%%=*}" | sed -n 's/.*"Dir": "\(.*\)",*/\1/p')
        install -m 644 "$folder/${each#*=}" "$work/chosen-published"
    done
    rm -rf "$target/published" && mv "$work/chosen-published" "$target/published"
    made published "$GATEWAY $CERT_MANAGER" # by hash: Go checks the modules
fi
ls -l "$target" >&2
