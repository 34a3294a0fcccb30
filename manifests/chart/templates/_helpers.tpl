{{/* The value below a path of keys, as the field `value` of a JSON object; empty where there is none. */}}
{{- define "gybe.at" -}}
{{- $value := .values -}}
{{- range splitList "." .path -}}
  {{- if and (kindIs "map" $value) (hasKey $value .) -}}
    {{- $value = get $value . -}}
  {{- else -}}
    {{- $value = "" -}}
  {{- end -}}
{{- end -}}
{{- dict "value" $value | toJson -}}
{{- end -}}

{{/*
The values as YAML: those below `cni` over the top level, those of istio-cni's chart under their names here, and those
of the platform where a value is empty. Empty values of istio-cni's chart are ignored; those below `global` apply only
where no other value is set. `ignored` has a line for each value without effect. Fails with all values that cannot be
applied.
*/}}
{{- define "gybe.values" -}}
{{- $values := deepCopy .Values -}}
{{- $values = mergeOverwrite $values (deepCopy ($values.cni | default dict)) -}}
{{- $refused := list -}}
{{- $ignored := list -}}
{{- $empty := list "null" "\"\"" "[]" -}}
{{- range $row := .Files.Get "files/istio-cni-values.yaml" | fromYamlArray -}}
  {{- $value := (include "gybe.at" (dict "values" $values "path" $row.key) | fromJson).value -}}
  {{- $sets := not (or (kindIs "map" $value) (has (toJson $value) (list "null" "\"\""))) -}}
  {{- range $path, $text := $row.when -}}
    {{- $other := (include "gybe.at" (dict "values" $values "path" $path) | fromJson).value -}}
    {{- $sets = and $sets (eq (toString $other) $text) -}}
  {{- end -}}
  {{- if and $row.to (hasPrefix "global." $row.key) -}}
    {{- $own := (include "gybe.at" (dict "values" $values "path" $row.to) | fromJson).value -}}
    {{- $sets = and $sets (has (toJson $own) $empty) -}}
  {{- end -}}
  {{- if $sets -}}
    {{- if hasKey ($row.of | default dict) (toString $value) -}}
      {{- $value = get $row.of (toString $value) -}}
    {{- else if $row.refused -}}
      {{- $refused = append $refused (printf "%s: %s" $row.key $row.refused) -}}
    {{- else if $row.ignored -}}
      {{- $ignored = append $ignored (printf "%s has no effect: %s" $row.key $row.ignored) -}}
    {{- else if $row.of -}}
      {{- $known := keys $row.of | sortAlpha | join ", " -}}
      {{- $refused = append $refused (printf "%s: %s is none of %s" $row.key (toString $value) $known) -}}
    {{- else if $row.join -}}
      {{- $texts := list -}}
      {{- range $row.join -}}
        {{- $part := (include "gybe.at" (dict "values" $values "path" .key) | fromJson).value -}}
        {{- $texts = append $texts (toString ($part | default .default)) -}}
      {{- end -}}
      {{- $value = join "=" $texts -}}
    {{- end -}}
    {{- if and $row.to (not (kindIs "invalid" $value)) -}}
      {{- range reverse (splitList "." $row.to) -}}{{- $value = dict . $value -}}{{- end -}}
      {{- $values = mergeOverwrite $values $value -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- $platforms := .Files.Get "files/platforms.yaml" | fromYaml -}}
{{- $detected := contains "-gke" .Capabilities.KubeVersion.Version | ternary "gke" "default" -}}
{{- $platform := $values.platform | default $detected -}}
{{- if not (hasKey $platforms $platform) -}}
  {{- $names := keys $platforms | sortAlpha | join ", " -}}
  {{- $refused = append $refused (printf "platform: %s is none of %s" $platform $names) -}}
{{- end -}}
{{- with $refused -}}{{- fail (printf "values that cannot be applied:\n- %s" (join "\n- " .)) -}}{{- end -}}
{{- if eq ($values.provider | default "") "multus" -}}
  {{- $values = merge $values (dict "settings" (dict "shape" "standalone")) -}}
{{- end -}}
{{- with $values.seLinuxOptions -}}{{- $_ := set $values "seLinuxOptions" (merge . (dict "type" "spc_t")) -}}{{- end -}}
{{- $values = merge $values (get $platforms $platform) $platforms.default -}}
{{- if not (hasKey $values.resourceQuotas "enabled") -}}
  {{- $_ := set $values.resourceQuotas "enabled" ($values.quotaRequired | default false) -}}
{{- end -}}
{{- toYaml (set $values "ignored" $ignored) -}}
{{- end -}}

{{/* The names of the pools as a JSON list. The pool with an empty name has the nodes of no other. */}}
{{- define "gybe.pools" -}}
{{- concat (list "") (keys .pools | sortAlpha) | toJson -}}
{{- end -}}

{{/* Whether the agents of a pool with these values have ambient mode: true or false. */}}
{{- define "gybe.ambient" -}}
{{- eq (toString (dig "enabled" false (.ambient | default dict))) "true" -}}
{{- end -}}

{{/* Whether a pool has ambient mode: true or false. */}}
{{- define "gybe.anyAmbient" -}}
{{- $values := . -}}
{{- $any := false -}}
{{- range fromJsonArray (include "gybe.pools" $values) -}}
  {{- $pool := fromYaml (include "gybe.pool" (dict "values" $values "name" .)) -}}
  {{- $any = or $any (eq (include "gybe.ambient" $pool) "true") -}}
{{- end -}}
{{- $any -}}
{{- end -}}

{{/* The values of a pool as YAML. */}}
{{- define "gybe.pool" -}}
{{- mergeOverwrite (deepCopy .values) (get .values.pools .name | default dict) | toYaml -}}
{{- end -}}

{{/*
Annotations of the objects without which the API server refuses an agent's query for its DaemonSet: a prune by Argo CD or
Flux leaves them, so that the agents find out that the DaemonSet is gone. Only with leave_when_daemonset_gone.
*/}}
{{- define "gybe.unpruned" -}}
{{- $all := fromYaml (include "gybe.values" .) -}}
{{- $leaves := false -}}
{{- range fromJsonArray (include "gybe.pools" $all) -}}
  {{- $settings := (include "gybe.pool" (dict "values" $all "name" .) | fromYaml).settings | default dict -}}
  {{- $leaves = or $leaves (eq (toString $settings.leave_when_daemonset_gone) "true") -}}
{{- end -}}
{{- if $leaves -}}
annotations:
  argocd.argoproj.io/sync-options: Prune=false,Delete=false
  kustomize.toolkit.fluxcd.io/prune: disabled
{{- end -}}
{{- end -}}

{{/* The beginning of the names of all objects. The label app.kubernetes.io/name stays: `gybe status` finds agents by it. */}}
{{- define "gybe.fullname" -}}
{{- $values := mergeOverwrite (deepCopy .Values) (deepCopy (.Values.cni | default dict)) -}}
{{- $name := $values.nameOverride -}}
{{- if and $name (not (contains $name .Release.Name)) -}}{{- $name = printf "%s-%s" .Release.Name $name -}}
{{- else if $name -}}{{- $name = .Release.Name -}}{{- end -}}
{{- $name = $values.fullnameOverride | default $name | default "gybe" -}}
{{- if gt (len $name) 36 -}}
{{- fail (printf "nameOverride: %s is longer than 36 characters; set fullnameOverride to a shorter name" $name) -}}
{{- end -}}
{{- $name -}}
{{- end -}}

{{/* The service account of the agents. */}}
{{- define "gybe.serviceAccount" -}}
{{- $values := mergeOverwrite (deepCopy .Values) (deepCopy (.Values.cni | default dict)) -}}
{{- $account := $values.serviceAccount -}}
{{- if and (not $account.create) (not $account.name) -}}
{{- fail "serviceAccount.name: name the account that serviceAccount.create=false leaves to you" -}}
{{- end -}}
{{- $account.name | default (printf "%s-node" (include "gybe.fullname" .)) -}}
{{- end -}}

{{/* What is appended to the names of a pool's objects. */}}
{{- define "gybe.suffix" -}}{{- with . -}}-{{ . }}{{- end -}}{{- end -}}

{{- define "gybe.labels" -}}
app.kubernetes.io/part-of: gybe
{{- end -}}

{{- define "gybe.image" -}}
{{ .image.repository }}{{ with .image.digest }}@{{ . }}{{ else }}:{{ .image.tag | default .version }}{{ end }}
{{- end -}}

{{/* Of the Kubernetes form, or names as in istio-cni's chart. */}}
{{- define "gybe.pullSecrets" -}}
{{- range . }}
- {{ if kindIs "string" . }}name: {{ . }}{{ else }}{{ toJson . }}{{ end }}
{{- end }}
{{- end -}}

{{/* The affinity of the agents on the nodes of no pool. */}}
{{- define "gybe.affinity" -}}
{{- $affinity := deepCopy .affinity -}}
{{- $no := dict "key" "gybe.dev/pool" "operator" "NotIn" "values" (keys .pools | sortAlpha) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $terms := list -}}
{{- range dig "nodeAffinity" $required "nodeSelectorTerms" (list dict) $affinity -}}
  {{- $terms = append $terms (set . "matchExpressions" (append (.matchExpressions | default list) $no)) -}}
{{- end -}}
{{- mergeOverwrite $affinity (dict "nodeAffinity" (dict $required (dict "nodeSelectorTerms" $terms))) | toYaml -}}
{{- end -}}

{{/* The agent's variables with a listen address and its port. */}}
{{- define "gybe.listen" -}}
{{- if eq .listen.address "node" }}
- name: {{ .name }}_ADDRESS
  valueFrom:
    fieldRef:
      fieldPath: status.hostIP
{{- else if ne .listen.address "all" }}
- name: {{ .name }}_ADDRESS
  value: {{ .listen.address | quote }}
{{- end }}
{{- if ne (int .listen.port) .default }}
- name: {{ .name }}_PORT
  value: {{ .listen.port | quote }}
{{- end }}
{{- end -}}

{{/* The update strategy without a surge where nodes may be without an agent: the API server refuses both. */}}
{{- define "gybe.updateStrategy" -}}
{{- $strategy := deepCopy .updateStrategy -}}
{{- with $strategy.rollingUpdate -}}
  {{- if or (ne $strategy.type "RollingUpdate") (not (has (toString .maxUnavailable) (list "0" "0%" "<nil>"))) -}}
    {{- $strategy = set $strategy "rollingUpdate" (omit . "maxSurge") -}}
  {{- end -}}
{{- end -}}
{{- if ne $strategy.type "RollingUpdate" -}}{{- $strategy = omit $strategy "rollingUpdate" -}}{{- end -}}
{{- toYaml $strategy -}}
{{- end -}}

{{/* The number of agents during an update: the nodes, and for each pool the surge, rounded up. */}}
{{- define "gybe.agents" -}}
{{- $values := . -}}
{{- $surge := 0 -}}
{{- range $name := fromJsonArray (include "gybe.pools" $values) -}}
  {{- $pool := fromYaml (include "gybe.pool" (dict "values" $values "name" $name)) -}}
  {{- $max := dig "rollingUpdate" "maxSurge" 0 (fromYaml (include "gybe.updateStrategy" $pool)) | toString -}}
  {{- if hasSuffix "%" $max -}}
    {{- $percent := mul $values.resourceQuotas.nodes (trimSuffix "%" $max) -}}
    {{- $surge = max $surge (add (div (add $percent 99) 100) (len $values.pools)) -}}
  {{- else -}}
    {{- $surge = max $surge (mul $max (add 1 (len $values.pools))) -}}
  {{- end -}}
{{- end -}}
{{- add $values.resourceQuotas.nodes $surge -}}
{{- end -}}

{{/* The values of `settings.repair` of all pools, as a JSON list. */}}
{{- define "gybe.repairs" -}}
{{- $values := . -}}
{{- $modes := list -}}
{{- range $name := fromJsonArray (include "gybe.pools" $values) -}}
  {{- $pool := fromYaml (include "gybe.pool" (dict "values" $values "name" $name)) -}}
  {{- $modes = append $modes (toString $pool.settings.repair) -}}
{{- end -}}
{{- $modes | uniq | toJson -}}
{{- end -}}

{{/* The keys in `settings.repair_label` of all pools, as a JSON list. */}}
{{- define "gybe.labelKeys" -}}
{{- $values := . -}}
{{- $keys := list -}}
{{- range $name := fromJsonArray (include "gybe.pools" $values) -}}
  {{- $pool := fromYaml (include "gybe.pool" (dict "values" $values "name" $name)) -}}
  {{- $keys = append $keys ($pool.settings.repair_label | default "cni.istio.io/uninitialized" | splitList "=" | first) -}}
{{- end -}}
{{- $keys | uniq | toJson -}}
{{- end -}}

{{/* The address and the node of an agent's page for Prometheus, from the pod's annotation. */}}
{{- define "gybe.relabelings" -}}
# An agent without this port serves no metrics.
- sourceLabels: [__meta_kubernetes_pod_annotation_prometheus_io_port]
  regex: "[0-9]+"
  action: keep
- sourceLabels: [__meta_kubernetes_pod_ip, __meta_kubernetes_pod_annotation_prometheus_io_port]
  regex: ([0-9.]+);([0-9]+)
  replacement: $1:$2
  targetLabel: __address__
- sourceLabels: [__meta_kubernetes_pod_ip, __meta_kubernetes_pod_annotation_prometheus_io_port]
  regex: (.*:.*);([0-9]+)
  replacement: "[$1]:$2"
  targetLabel: __address__
- sourceLabels: [__meta_kubernetes_pod_node_name]
  targetLabel: node
# The alerts select it, whatever the name of this object.
- targetLabel: job
  replacement: {{ .Release.Namespace }}/gybe-node
{{- end -}}

{{/* The metadata of the hook's objects after the name. The account is there before the Job. */}}
{{- define "gybe.leave.hook" }}
  namespace: {{ .Release.Namespace }}
  labels:
    {{- include "gybe.labels" . | nindent 4 }}
  annotations:
    helm.sh/hook: pre-delete
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/*
The container that probes: `repair`, which keeps running, or with probeOnce the init container `probe`.
*/}}
{{- define "gybe.probe" -}}
{{- if .values.probeOnce -}}
# Tries each backend on the host, finds out which runtimes run there, and stores both reports in the host's /run/gybe,
# from which plugin and agent read them.
- name: probe
{{- else -}}
# Redirects running pods that should be redirected and are not, as the agent's setting `repair` requests. Tries
# each backend on the host and stores the report in the host's /run/gybe, from which plugin and agent read it.
# To judge the pods of its node: kubectl exec -n {{ .namespace }} POD -c repair -- gybe verify --all
- name: repair
{{- end }}
  image: {{ .image }}
  imagePullPolicy: {{ .values.image.pullPolicy }}
  command:
    - /opt/gybe/bin/gybe
    - probe
    - --host
    - --mount-namespace=/host/proc/1/ns/mnt
    {{- if .values.probeOnce }}
    - --for-agent
    {{- else }}
    - --keep
    - --watch
    - --repair
    {{- end }}
  {{- if not .values.probeOnce }}
  # Commands without --host, too, run in the host's mount namespace: with its pods, programs and sockets.
  env:
    - name: GYBE_HOST_MOUNTS
      value: /host/proc/1/ns/mnt
  {{- end }}
  resources:
    {{- toYaml .values.repairResources | nindent 4 }}
  securityContext:
    privileged: false
    # It needs only the capabilities with which it starts. The API server refuses `false` beside the
    # name CAP_SYS_ADMIN (ValidateSecurityContext, pkg/apis/core/validation), but not beside SYS_ADMIN, which
    # the runtime knows too.
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    runAsUser: 0
    runAsGroup: 0
    capabilities:
      drop: [ALL]
      add:
        # Connections as the proxy's user.
        - SETUID
        # A listener at port 53.
        - NET_BIND_SERVICE
        # Rules, routes and marks in a temporary network namespace.
        - NET_ADMIN
        # iptables-legacy.
        - NET_RAW
        # Opening and entering the host's mount namespace. Reading the processes and the configuration of
        # containerd and CRI-O, for /run/gybe/runtime.json.
        - SYS_PTRACE
        - SYS_ADMIN
        - SYS_CHROOT
    # The default profile forbids reading processes outside of it.
    appArmorProfile:
      type: Unconfined
  volumeMounts:
    # Gives only this container access to process 1. With hostPID the container `install`, which also runs as
    # root, could kill any process of the host.
    - name: proc
      mountPath: /host/proc
      readOnly: true
{{- end -}}
