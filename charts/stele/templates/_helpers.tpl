{{- define "stele.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the operator's own objects: the release's name, followed by the chart's unless it contains that. */}}
{{- define "stele.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "stele.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "stele.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "stele.operator" -}}
{{- printf "%s-operator" (include "stele.fullname" .) -}}
{{- end -}}

{{- define "stele.operatorServiceAccount" -}}
{{- default (include "stele.operator" .) .Values.serviceAccounts.operator -}}
{{- end -}}

{{/* With `helm upgrade --reuse-values` new values are empty, so their defaults are repeated here. */}}
{{- define "stele.executorServiceAccount" -}}
{{- default "stele-executor" .Values.serviceAccounts.executor -}}
{{- end -}}

{{/* The account that executors' pods have: with all namespaces, the chart makes none in them. */}}
{{- define "stele.podExecutorAccount" -}}
{{- ternary "default" (include "stele.executorServiceAccount" .) (eq (include "stele.watchesAll" .) "true") -}}
{{- end -}}

{{/* The Secret of each watched namespace by which Spark's drivers and executors authenticate. */}}
{{- define "stele.sparkSecret" -}}
{{- default (printf "%s-auth" .Values.serviceAccounts.spark) (.Values.spark).existingSecret -}}
{{- end -}}

{{/* "true" when all namespaces are watched. */}}
{{- define "stele.watchesAll" -}}
{{- if has "*" (default list .Values.watchNamespaces) -}}
{{- if gt (len .Values.watchNamespaces) 1 }}{{ fail "watchNamespaces: write [\"*\"] alone, or names" }}{{ end -}}
{{- if not .Values.rbac.clusterScoped }}
{{- fail "watchNamespaces [\"*\"] needs rbac.clusterScoped: list the namespaces instead" }}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/* The namespaces that the chart makes objects in, comma separated. */}}
{{- define "stele.namespaces" -}}
{{- if include "stele.watchesAll" . -}}
{{- .Release.Namespace -}}
{{- else -}}
{{- join "," (default (list .Release.Namespace) .Values.watchNamespaces) -}}
{{- end -}}
{{- end -}}

{{/* Limits an admission policy to the namespaces that are watched; nothing when that is all of them. */}}
{{- define "stele.watchedNamespaces" -}}
{{- if not (include "stele.watchesAll" .) }}
namespaceSelector:
  matchExpressions:
    - key: kubernetes.io/metadata.name
      operator: In
      values: {{ splitList "," (include "stele.namespaces" .) | toJson }}
{{- end }}
{{- end -}}

{{/* Puts an admission policy, `name`, in force. */}}
{{- define "stele.policyBinding" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels:
    {{- include "stele.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny]
{{- end }}

{{/* What the operator may do in the namespaces that it watches. */}}
{{- define "stele.operatorRules" -}}
- apiGroups: [stele.dev]
  resources:
    - tabletclusters
    - tabletclusters/status
    - tabletclusters/scale
    - tabletclusters/finalizers
    - tabletmembers
    - tabletmembers/status
    - tabletmembers/finalizers
    - tabletrebalances
    - tabletrebalances/status
    - tabletrebalances/finalizers
    - keyspaces
    - keyspaces/status
    - keyspaces/finalizers
    - tabletusers
    - tabletusers/status
    - tabletusers/finalizers
  verbs: [get, list, watch, create, update, patch, delete, deletecollection]
- apiGroups: [""]
  resources: [configmaps, pods, services, persistentvolumeclaims]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [apps]
  resources: [controllerrevisions]
  verbs: [get, list, create, update, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, create, update, delete]
- apiGroups: ["", events.k8s.io]
  resources: [events]
  verbs: [get, list, watch, create, patch]
- apiGroups: [""]
  resources: [serviceaccounts]
  verbs: [get]
{{- end -}}

{{/* What the operator may do with Secrets: those of certificates and users, by name. Never bound for all namespaces. */}}
{{- define "stele.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create, update, delete]
{{- end -}}

{{/* What a copier may do in its namespace. */}}
{{- define "stele.sparkRules" -}}
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, deletecollection, patch]
{{- end -}}

{{/* Name of a cluster-scoped object: two releases in two namespaces must not share it. */}}
{{- define "stele.clusterName" -}}
{{- printf "%s-%s" .Release.Namespace (include "stele.fullname" .) -}}
{{- end -}}

{{- define "stele.selector" -}}
app.kubernetes.io/name: stele-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "stele.ownLabels" -}}
{{ include "stele.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: stele
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The chart's own labels, then those of `more`, then those that are common to all objects: the first one counts. */}}
{{- define "stele.labelsAnd" -}}
{{- merge (include "stele.ownLabels" .root | fromYaml) (default dict .more) (default dict .root.Values.commonLabels) | toYaml -}}
{{- end -}}

{{- define "stele.labels" -}}
{{- include "stele.labelsAnd" (dict "root" .) -}}
{{- end -}}

{{/* Annotations of a ServiceAccount, by its part: operator, member, spark or executor. */}}
{{- define "stele.accountAnnotations" -}}
{{- with index (default dict .root.Values.serviceAccounts.annotations) .part }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* An image of the values, by the key under `images`: its whole name, or what that is put together from. */}}
{{- define "stele.image" -}}
{{- $images := .root.Values.images -}}
{{- $image := index $images .key | default dict -}}
{{- if not (kindIs "string" $image) -}}
{{- $name := $image.repository | default (printf "localhost/stele-%s" (ternary "sql" .key (eq .key "bulk"))) -}}
{{- if $images.registry }}{{ $name = regexReplaceAll "^localhost/" $name (printf "%s/" $images.registry) }}{{ end -}}
{{- $tag := $image.tag | default (ternary "" ($images.tag | default .root.Chart.AppVersion) (not (empty $image.digest))) -}}
{{- $image = print $name (ternary "" ":" (empty $tag)) $tag (ternary "" "@" (empty $image.digest)) (default "" $image.digest) -}}
{{- end -}}
{{- if and .root.Values.images.requireDigests (not (regexMatch "^\\S+@sha256:[0-9a-f]{64}$" $image)) -}}
{{- fail (printf "images.%s is %q, and images.requireDigests is set: name it with its digest, sha256:..." .key $image) -}}
{{- end -}}
{{- $image -}}
{{- end -}}

{{/* The security context of the operator's pod, and that of its container. */}}
{{- define "stele.podSecurityContext" -}}
{{- $default := dict "runAsNonRoot" true "runAsUser" 10001 "runAsGroup" 10001 "fsGroup" 10001
  "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- ternary .Values.operator.podSecurityContext $default (hasKey .Values.operator "podSecurityContext") | toYaml -}}
{{- end -}}

{{- define "stele.securityContext" -}}
{{- $default := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true
  "capabilities" (dict "drop" (list "ALL")) -}}
{{- ternary .Values.operator.securityContext $default (hasKey .Values.operator "securityContext") | toYaml -}}
{{- end -}}

{{/* Pull secrets of pods or ServiceAccounts; nothing when no Secret is named. */}}
{{- define "stele.pullSecrets" -}}
{{- with .Values.images.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}
