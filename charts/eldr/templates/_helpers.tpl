{{- define "eldr.name" -}}
{{- if contains "eldr" .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-eldr" .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "eldr.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (printf "%s-operator" (include "eldr.name" .)) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name: needed where serviceAccount.create is false; name one that is there, the operator gets its rights" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "eldr.image" -}}
{{- $version := printf ":%s" (default .Chart.AppVersion .Values.image.tag) -}}
{{- with .Values.image.digest }}{{ $version = printf "@%s" . }}{{ end -}}
{{- printf "%s%s" .Values.image.repository $version -}}
{{- end -}}

{{- define "eldr.selector" -}}
app.kubernetes.io/name: eldr-operator
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "eldr.labels" -}}
{{ include "eldr.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: eldr
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* --reuse-values takes an older chart's defaults along: ours would be missing, the security contexts among them. */}}
{{- define "eldr.checkValues" -}}
{{- if not .Values.tests -}}
{{- fail "tests: missing, as in values of an older chart; upgrade with --reset-then-reuse-values instead of --reuse-values" -}}
{{- end -}}
{{- range $name := list "apiKey" "ca" -}}
{{- with get $.Values.tests $name -}}
{{- if and .secretName (not .entry) -}}
{{- fail (printf "tests.%s.entry: empty; name the entry of Secret %s to read" $name .secretName) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if eq (int .Values.metrics.port) (int .Values.liveness.port) -}}
{{- fail (printf "metrics.port and liveness.port are both %d; give one of them another port" (int .Values.metrics.port)) -}}
{{- end -}}
{{- end -}}

{{/* No label of the operator's selector: a test is none of its pods. */}}
{{- define "eldr.testLabels" -}}
app.kubernetes.io/name: eldr-test
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: test
app.kubernetes.io/part-of: eldr
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "eldr.testRights" -}}
helm.sh/hook: test
helm.sh/hook-weight: "-1"
helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end -}}

{{/*
What the operator may do. Server-side apply needs create and patch. It can grant only what it holds, so it holds what the
Roles of routers (pods get/list/watch, configmaps get/watch) and fits (configmaps get/create) need. It creates a Secret for each
deployment and reads none of them.
*/}}
{{- define "eldr.rules" -}}
- apiGroups: [eldr.dev]
  resources: [eldrdeployments]
  verbs: [get, list, watch]
- apiGroups: [eldr.dev]
  resources: [eldrfits]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [eldr.dev]
  resources: [eldrscalers]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [eldr.dev]
  resources: [eldrdeployments/status, eldrfits/status, eldrscalers/status]
  verbs: [patch]
- apiGroups: [apps]
  resources: [deployments, statefulsets, controllerrevisions]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
- apiGroups: [""]
  resources: [secrets]
  verbs: [create{{ if .Values.rbac.readSecrets }}, get{{ end }}]
- apiGroups: [""]
  resources: [events]
  verbs: [list, create]
# Which release serves a namespace; create cannot be limited to a name.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [eldr-served-by]
  verbs: [get, update]
{{- end -}}
